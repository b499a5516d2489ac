// Linear attention: gates, convolution and the delta rule.
#include "python/binding_rows.h"

namespace estream::binding {

namespace {

void causal_conv(CpuDevice& device, const Floats& x, const Array<int32_t, 1>& positions, uintptr_t weight, const Floats& y) {
  require(x.shape(1) == y.shape(1) && x.shape(0) >= y.shape(0) && positions.shape(0) == y.shape(0),
          "causal_conv: shapes differ");
  device.causal_conv(rows(x), positions.data(), floats_at(weight), static_cast<int>(x.shape(0) - y.shape(0) + 1), rows(y));
}

void gate(CpuDevice& device, const Floats& x, const Floats& gates, bool with_silu, const Floats& y) {
  require(
      gates.shape(0) == y.shape(0) && x.shape(0) == y.shape(0) && gates.shape(1) <= x.shape(1) && gates.shape(1) <= y.shape(1),
      "gate: shapes differ");
  device.gate(rows(x), rows(gates), with_silu, rows(y));
}

void gates_of_delta_rule(const Floats& x, uintptr_t log_rates, uintptr_t bias) {
  require(x.shape(1) % 2 == 0, "delta_gates: a rate and a step for each head");
  delta_gates(rows(x), floats_at(log_rates), floats_at(bias));
}

void delta_rule(CpuDevice& device, const DeltaShape& shape, const Floats& mixed, const Floats& decays_and_rates,
                const Array<int32_t, 1>& positions, const Array<float, 3>& state, const Floats& out) {
  const int64_t keys = int64_t{shape.key_heads} * shape.key_dim, values = int64_t{shape.value_heads} * shape.value_dim;
  const size_t count = mixed.shape(0);
  require(static_cast<int64_t>(mixed.shape(1)) == 2 * keys + values && static_cast<int64_t>(out.shape(1)) == values &&
              static_cast<int64_t>(decays_and_rates.shape(1)) == 2 * shape.value_heads && out.shape(0) == count &&
              decays_and_rates.shape(0) == count && positions.shape(0) == count,
          "delta_rule: shapes differ");
  require(static_cast<int64_t>(state.size()) == values * shape.key_dim, "delta_rule: the state does not fit");
  device.delta_rule(shape, rows(mixed), rows(decays_and_rates), positions.data(), state.data(), rows(out));
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<DeltaShape>(m, "DeltaShape", "The heads of linear attention by the gated delta rule (arXiv 2412.06464).")
      .def(
          "__init__",
          [](DeltaShape* self, int key_heads, int value_heads, int key_dim, int value_dim) {
            require(key_heads > 0 && value_heads > 0 && value_heads % key_heads == 0,
                    "value_heads must be a multiple of key_heads");
            require(key_dim > 0 && key_dim <= 1024, "key_dim must lie in 1..1024");
            require(value_dim > 0 && value_dim % 16 == 0, "value_dim must be a multiple of 16");
            new (self) DeltaShape{key_heads, value_heads, key_dim, value_dim};
          },
          "key_heads"_a, "value_heads"_a, "key_dim"_a, "value_dim"_a,
          "``value_heads`` is a multiple of ``key_heads``, ``key_dim`` at most 1024, ``value_dim`` a multiple of 16.");
  m.def("causal_conv", &causal_conv, "device"_a, "x"_a.noconvert(), "positions"_a.noconvert(), "weight"_a, "y"_a.noconvert(),
        ReleaseGil(),
        R"(Compute y = silu(causal convolution of x over the tokens), column by column.

x: [rows + kernel size - 1, columns]; its last rows are those of ``y``, the others come before them.
positions: [rows], each token's position in its sequence; rows before position 0 are not read.
weight: the address of float32 [kernel size, columns].
y: [rows, columns].)");
  m.def("gate", &gate, "device"_a, "x"_a.noconvert(), "gates"_a.noconvert(), "silu"_a, "y"_a.noconvert(), ReleaseGil(),
        R"(Compute y = x * silu(gates), or x * sigmoid(gates). ``x`` and ``y`` have at least the columns of ``gates``
[rows, columns]; further columns of ``y`` become zero.)");
  m.def("delta_gates", &gates_of_delta_rule, "x"_a.noconvert(), "log_rates"_a, "bias"_a, ReleaseGil(),
        R"(Turn rates and steps ``x`` [rows, 2 * heads] into decays and rates, in place:
decay = exp(-exp(log_rates) * softplus(step + bias)), rate = sigmoid(rate).

``log_rates`` and ``bias`` are addresses of float32 [heads].)");
  m.def("delta_rule", &delta_rule, "device"_a, "shape"_a, "mixed"_a.noconvert(), "decays_and_rates"_a.noconvert(),
        "positions"_a.noconvert(), "state"_a.noconvert(), "out"_a.noconvert(), ReleaseGil(),
        R"(The gated delta rule over rows of tokens, one after another.

mixed: [rows, 2 * key_heads * key_dim + value_heads * value_dim]: all queries, all keys, all values.
decays_and_rates: [rows, 2 * value_heads], from ``delta_gates``.
positions: [rows]; at position 0 a sequence begins with an empty state.
state: [value_heads, key_dim, value_dim], which the next call continues.
out: [rows, value_heads * value_dim].)");
}

}  // namespace estream::binding
