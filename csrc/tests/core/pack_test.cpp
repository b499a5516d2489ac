// Packing weights, and codes that a checkpoint already has.
#include "core/pack.h"

#include <cmath>

#include "tests/matrices.h"

namespace estream::tests {

namespace {

void check_packing(const std::vector<float>& source, int columns, int bits, int group) {
  const int outputs = static_cast<int>(source.size()) / columns;
  Matrix m = {{nullptr, outputs, (columns + group - 1) / group * group, bits, group}};
  std::vector<int32_t> order(outputs);
  for (int o = 0; o < outputs; o++) order[o] = o % 9 == 4 ? -1 : outputs - 1 - o;
  const auto pack = [&](const Kernels& kernels, int threads) {
    ThreadPool pool(threads);
    std::vector<uint8_t> bytes(m.packed.bytes(), 0xcc);
    const PackingResult result = pack_matrix(pool, kernels, rows_of(source, columns), order.data(), m.packed, bytes.data());
    CHECK(result.bad_row == -1);
    return bytes;
  };
  m.bytes = pack(*find_kernels("portable"), 1);
  for_each_variant([&](const Kernels& kernels) { CHECK(pack(kernels, 3) == m.bytes); });
  m.packed.data = m.bytes.data();
  unpack_matrix(m.packed, m.weights.data());
  // Of a largest weight of 1: half a step and the rounding of the scale; with 4 bits also what is clipped.
  const float bound = bits == 4 ? 0.25f : 0.57f / 127.0f;
  for (int i = 0; i < outputs * m.packed.inputs; i++) {
    const int row = order[i / m.packed.inputs], column = i % m.packed.inputs;
    CHECK(std::fabs(m.weights[i] - (row < 0 || column >= columns ? 0.0f : source[row * columns + column])) <= bound);
  }
}

}  // namespace

void given_codes_are_kept() {
  constexpr int kRows = 37, kColumns = 128, kGroup = 64, kGroups = kColumns / kGroup;
  Random random{9};
  for (const int bits : {4, 8}) {
    std::vector<int8_t> codes(kRows * kColumns);
    for (int8_t& code : codes) code = static_cast<int8_t>(bits == 4 ? random.below(16) - 8 : random.below(255) - 127);
    std::vector<uint16_t> scales(kRows * kGroups, 0xb800);  // -0.5
    std::vector<int32_t> order = {36, -1, 0, 5};
    Matrix m = {{nullptr, static_cast<int>(order.size()), kColumns + kGroup, bits, kGroup}};
    const CodeRows rows{codes.data(), scales.data(), kColumns};
    ThreadPool pool(2);
    CHECK(pack_codes(pool, rows, order.data(), m.packed, m.bytes.data()) == -1);
    m.packed.data = m.bytes.data();
    unpack_matrix(m.packed, m.weights.data());
    std::vector<float> source(codes.begin(), codes.end());
    for (float& value : source) value *= -0.5f;
    for (int i = 0; i < m.packed.outputs * m.packed.inputs; i++) {
      const int row = order[i / m.packed.inputs], column = i % m.packed.inputs;
      CHECK(m.weights[i] == (row < 0 || column >= kColumns ? 0.0f : source[row * kColumns + column]));
    }
    const PackingError error = packing_error(pool, rows_of(source, kColumns), order.data(), m.packed);
    CHECK(error.squared_error == 0.0 && error.squared > 0.0);
    scales[5 * kGroups + 1] = 0x7c00;
    CHECK(pack_codes(pool, rows, order.data(), m.packed, m.bytes.data()) == 5);
    codes[3] = -128;
    CHECK(pack_codes(pool, rows, order.data(), m.packed, m.bytes.data()) == 0);
  }
}

void packing_comes_back_close() {
  Random random{6};
  for (const int bits : {4, 8})
    for (const int group : {32, 64, 128}) check_packing(random.values(70 * 150), 150, bits, group);
}

}  // namespace estream::tests
