// Packing, unpacking and given codes, at every shape that the bindings let through, in arrays of just the right size.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "core/pack.h"
#include "native/provider.h"

namespace estream::fuzz {

namespace {

const Kernels& some_kernels(Choices& c) {
  const char* const* names = available_kernels();
  int count = 0;
  while (names[count]) count++;
  return *find_kernels(names[c.byte() % count]);
}

std::vector<int32_t> some_order(Choices& c, int outputs, int rows) {
  std::vector<int32_t> order(outputs);
  for (int32_t& row : order) row = c.byte() % 5 == 0 ? -1 - c.byte() : rows ? c.number<uint16_t>() % rows : -1;
  return order;
}

void pack(Choices& c, ThreadPool& pool, PackedMatrix m) {
  const WeightType type = c.of({WeightType::float32, WeightType::float16, WeightType::bfloat16});
  const size_t item = type == WeightType::float32 ? 4 : 2;
  const int columns = c.within(1, m.inputs), rows = c.within(0, 70);
  const std::vector<uint8_t> bytes =
      c.flag() ? c.bytes(rows * columns * item) : std::vector<uint8_t>(rows * columns * item, c.byte());
  WeightRows source{type, columns, {}};
  for (int r = 0; r < rows; r++) source.rows.push_back(bytes.data() + r * columns * item);
  const std::vector<int32_t> order = some_order(c, m.outputs, rows);
  std::vector<uint8_t> to(m.bytes());
  const PackingResult result = pack_matrix(pool, some_kernels(c), source, order.data(), m, to.data());
  std::vector<double> sums(columns);
  add_column_squares(source, sums.data());
  m.data = to.data();
  std::vector<float> out(static_cast<size_t>(m.outputs) * m.inputs);
  unpack_matrix(m, out.data());
  packing_error(pool, source, order.data(), m);
  if (result.bad_row >= 0) return;
  for (const float value : out)
    if (!std::isfinite(value)) {
      std::fprintf(stderr, "wrong: finite weights became %g\n", static_cast<double>(value));
      std::abort();
    }
}

void codes(Choices& c, ThreadPool& pool, const PackedMatrix& m) {
  const int columns = m.group * c.within(1, m.groups()), rows = c.within(0, 40);
  std::vector<int8_t> given(static_cast<size_t>(rows) * columns);
  std::vector<uint16_t> scales(static_cast<size_t>(rows) * (columns / m.group));
  for (int8_t& code : given) code = static_cast<int8_t>(c.byte() % 16 - 8);
  for (uint16_t& scale : scales) scale = c.byte() % 8 ? 0x3c00 : c.number<uint16_t>();
  std::vector<uint8_t> to(m.bytes());
  pack_codes(pool, {given.data(), scales.data(), columns}, some_order(c, m.outputs, rows).data(), m, to.data());
}

}  // namespace

}  // namespace estream::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace estream;
  static ThreadPool pool(2);
  fuzz::Choices c(data, size);
  const int group = c.of({32, 64, 128});
  const PackedMatrix m{nullptr, c.within(1, 100), group * c.within(1, 3), c.of({4, 8}), group};
  if (c.flag())
    fuzz::pack(c, pool, m);
  else
    fuzz::codes(c, pool, m);
  return 0;
}
