// The device's operations on any shape that the bindings let through, with rows and positions at their bounds, in arrays of
// just the right size.
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "core/cpu_device.h"
#include "native/provider.h"

namespace estream::fuzz {

namespace {

int round_up(int value, int step) { return (value + step - 1) / step * step; }

struct Quantized {
  int rows, columns, group;
  std::vector<int8_t> codes = std::vector<int8_t>(static_cast<size_t>(rows) * columns);
  std::vector<float> scales = std::vector<float>(static_cast<size_t>(rows) * (columns / group));
  std::vector<int32_t> sums = std::vector<int32_t>(static_cast<size_t>(rows) * (columns / group));

  QuantizedOutput output() { return {codes.data(), scales.data(), sums.data(), columns, group}; }
  Activations view() const { return {{codes.data(), scales.data(), sums.data(), columns, columns / group}, nullptr, 0}; }
};

struct Matrix {
  PackedMatrix packed;
  std::vector<uint8_t> bytes;

  Matrix(Choices& c, int outputs, int inputs, int group) : packed{nullptr, outputs, inputs, c.of({4, 8}), group} {
    bytes = c.bytes(packed.bytes() + 64);
    // A matrix lies on a multiple of 64 bytes.
    packed.data = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
  }
};

void norm(Choices& c, CpuDevice& device) {
  const int rows = c.within(0, 40), columns = c.within(1, 200), group = c.of({16, 32, 64, 128});
  std::vector<float> x = c.floats(static_cast<size_t>(rows) * columns), weight = c.floats(columns), bias = c.floats(columns);
  Quantized q{rows, round_up(columns, group), group};
  std::vector<float> floats(static_cast<size_t>(rows) * q.columns);
  const Norm how{weight.data(), c.flag() ? bias.data() : nullptr, columns, 1e-5f};
  device.norm({x.data(), rows, columns}, how, {floats.data(), q.columns, q.output()});
  device.quantize({x.data(), rows, columns}, columns, q.output());
}

void matmul(Choices& c, CpuDevice& device) {
  const int group = c.of({32, 64, 128}), inputs = group * c.within(1, 3), outputs = c.within(1, 100), rows = c.within(1, 150);
  const Matrix w(c, outputs, inputs, group);
  std::vector<float> x = c.floats(static_cast<size_t>(rows) * inputs), bias = c.floats(round_up(outputs, 32));
  std::vector<float> y(static_cast<size_t>(rows) * outputs);
  Quantized q{rows, inputs, group};
  device.quantize({x.data(), rows, inputs}, inputs, q.output());
  const Activations in = c.flag() ? q.view() : Activations{{}, x.data(), inputs};
  device.matmul(w.packed, in, rows, y.data(), outputs, {c.flag(), 0.5f, c.flag() ? bias.data() : nullptr});
}

void expert(Choices& c, CpuDevice& device) {
  const int group = c.of({32, 64, 128}), hidden = group * c.within(1, 2), width = 16 * c.within(1, 6), rows = c.within(1, 90);
  const int inner = round_up(width, group), room = c.within(1, 40), count = c.within(0, rows);
  const Matrix gate_up(c, 2 * width, hidden, group), down(c, hidden, inner, group);
  std::vector<float> x = c.floats(static_cast<size_t>(rows) * hidden), weights = c.floats(count), y(x.size());
  std::vector<float> scratch(static_cast<size_t>(room) * inner), gate_bias = c.floats(round_up(2 * width, 32));
  Quantized q{rows, hidden, group}, s{room, inner, group};
  device.quantize({x.data(), rows, hidden}, hidden, q.output());
  std::vector<int32_t> tokens(count), to(count);
  for (int i = 0; i < count; i++) tokens[i] = c.number<uint16_t>() % rows, to[i] = rows - 1 - i;
  const Activations in = c.flag() ? q.view() : Activations{{}, x.data(), hidden};
  ExpertWeights w{gate_up.packed, down.packed};
  if (c.flag()) w.gate_up_bias = gate_bias.data(), w.alpha = 1.7f, w.limit = 7.0f;
  device.expert(w, in, tokens.data(), {to.data(), weights.data()}, count,
                {scratch.data(), s.codes.data(), s.scales.data(), s.sums.data(), room}, y.data(), hidden);
}

void route(Choices& c, CpuDevice&) {
  const int groups = c.of({1, 1, 2, 4}), experts = groups * c.within(1, 40), top_groups = c.within(1, groups);
  Routing routing{experts, c.within(1, experts / groups * top_groups), c.of({Scoring::softmax, Scoring::sigmoid})};
  routing.groups = groups, routing.top_groups = top_groups, routing.normalise = c.flag();
  if (groups == 1 && experts > 1 && c.byte() % 4 == 0)
    routing.scoring = Scoring::sparsemixer, routing.top_k = 2, routing.jitter = 0.01f;
  const int rows = c.within(0, 40), columns = experts + c.within(0, 17);
  std::vector<float> logits = c.floats(static_cast<size_t>(rows) * columns), bias = c.floats(experts);
  std::vector<int32_t> ids(static_cast<size_t>(rows) * routing.top_k), tokens(ids.size());
  std::vector<float> weights(ids.size()), sorted(ids.size());
  std::vector<int64_t> starts(experts + 1);
  route(routing, {c.flag() ? bias.data() : nullptr, c.flag() ? bias.data() : nullptr}, logits.data(), rows, columns, ids.data(),
        weights.data());
  for (const int32_t id : ids)
    if (id < 0 || id >= experts) std::abort();
  list_by_expert(ids.data(), weights.data(), rows, routing.top_k, experts, tokens.data(), sorted.data(), starts.data());
}

void attention(Choices& c, CpuDevice& device) {
  const int kv_heads = c.within(1, 3), heads = kv_heads * c.within(1, 3), dim = 16 * c.within(1, 6),
            value_dim = 16 * c.within(1, 5);
  const int rows = c.within(1, 90), before = c.within(0, 70), capacity = round_up(rows + before, kKeyRun);
  const AttentionShape shape{heads, kv_heads, dim, value_dim, 0.1f, c.flag() ? c.within(1, 80) : 0};
  const size_t bytes = static_cast<size_t>(kv_heads) * capacity * device.kv_element_bytes();
  std::vector<uint8_t> key_bytes(bytes * dim), value_bytes(bytes * value_dim);
  const KeyValues kv{key_bytes.data(), value_bytes.data(), capacity};
  std::vector<float> keys = c.floats(static_cast<size_t>(rows) * kv_heads * dim),
                     values = c.floats(static_cast<size_t>(rows) * kv_heads * value_dim),
                     queries = c.floats(static_cast<size_t>(rows) * heads * dim),
                     out(static_cast<size_t>(rows) * heads * value_dim), sinks = c.floats(heads);
  std::vector<int32_t> positions(rows), bases(rows), destination(rows);
  for (int i = 0; i < rows; i++) positions[i] = destination[i] = before + i;
  device.store_key_values(shape, {keys.data(), rows, kv_heads * dim}, {values.data(), rows, kv_heads * value_dim},
                          destination.data(), kv);
  device.attention(shape, {queries.data(), rows, heads * dim}, positions.data(), bases.data(), kv,
                   c.flag() ? sinks.data() : nullptr, {out.data(), rows, heads * value_dim});
}

void linear(Choices& c, CpuDevice& device) {
  const int key_heads = c.within(1, 3), value_heads = key_heads * c.within(1, 2), key_dim = c.within(1, 70);
  const int value_dim = 16 * c.within(1, 4), rows = c.within(1, 60), kernel = c.within(1, 5);
  const int mixed_columns = 2 * key_heads * key_dim + value_heads * value_dim, columns = value_heads * value_dim;
  std::vector<float> x = c.floats(static_cast<size_t>(rows + kernel - 1) * mixed_columns),
                     y(static_cast<size_t>(rows) * mixed_columns);
  std::vector<float> weight = c.floats(static_cast<size_t>(kernel) * mixed_columns), rates = c.floats(rows * 2 * value_heads);
  std::vector<float> log_rates = c.floats(value_heads), bias = c.floats(value_heads), out(static_cast<size_t>(rows) * columns);
  std::vector<float> state(static_cast<size_t>(columns) * key_dim);
  std::vector<int32_t> positions(rows);
  const int start = c.byte();
  for (int i = 0; i < rows; i++) positions[i] = i < start ? i : i - start;
  device.causal_conv({x.data(), rows + kernel - 1, mixed_columns}, positions.data(), weight.data(), kernel,
                     {y.data(), rows, mixed_columns});
  delta_gates({rates.data(), rows, 2 * value_heads}, log_rates.data(), bias.data());
  device.delta_rule({key_heads, value_heads, key_dim, value_dim}, {y.data(), rows, mixed_columns},
                    {rates.data(), rows, 2 * value_heads}, positions.data(), state.data(), {out.data(), rows, columns});
  device.gate({out.data(), rows, columns}, {out.data(), rows, columns}, c.flag(), {out.data(), rows, columns});
}

void rotate(Choices& c, CpuDevice& device) {
  const int heads = c.within(1, 5), dim = 2 * c.within(1, 70), rows = c.within(0, 40), dims = 2 * c.within(1, dim / 2);
  std::vector<float> x = c.floats(static_cast<size_t>(rows) * heads * dim), weight = c.floats(heads * dim);
  std::vector<float> cosine = c.floats(static_cast<size_t>(rows) * dims / 2), sine = c.floats(cosine.size());
  const Norm norm{weight.data(), nullptr, c.flag() ? dim : heads * dim, 1e-5f};
  device.rotate({x.data(), rows, heads * dim}, {heads, dim, c.flag() ? 1.0f : 0.0f, c.flag() ? &norm : nullptr},
                {cosine.data(), sine.data(), dims});
}

// One of each kind is kept: making one takes longer than any operation.
CpuDevice& some_device(Choices& c) {
  static std::map<std::tuple<std::string, int, bool>, std::unique_ptr<CpuDevice>> devices;
  const char* const* names = available_kernels();
  int count = 0;
  while (names[count]) count++;
  const char* name = names[c.byte() % count];
  const int threads = c.within(1, 2);
  const bool exact = c.flag();
  std::unique_ptr<CpuDevice>& device = devices[{name, threads, exact}];
  if (!device) {
    setenv("ESTREAM_KERNELS", name, 1);
    device = std::make_unique<CpuDevice>(threads, exact);
  }
  return *device;
}

}  // namespace

}  // namespace estream::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace estream;
  fuzz::Choices c(data, size);
  CpuDevice& device = fuzz::some_device(c);
  using Operation = void (*)(fuzz::Choices&, CpuDevice&);
  constexpr Operation operations[] = {fuzz::norm,      fuzz::matmul, fuzz::expert, fuzz::route,
                                      fuzz::attention, fuzz::linear, fuzz::rotate};
  for (int i = 0; i < 4 && !c.empty(); i++) operations[c.byte() % 7](c, device);
  return 0;
}
