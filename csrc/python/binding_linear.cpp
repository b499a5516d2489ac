// Linear attention: gates, convolution and the delta rule.
#include "core/cpu_device.h"
#include "python/binding.h"

namespace estream::binding {

namespace {

Rows rows(const Floats& a) { return {a.data(), static_cast<int>(a.shape(0)), static_cast<int64_t>(a.shape(1))}; }

const float* floats_at(uintptr_t address) { return reinterpret_cast<const float*>(address); }

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
  nb::class_<DeltaShape>(m, "DeltaShape")
      .def(
          "__init__",
          [](DeltaShape* self, int key_heads, int value_heads, int key_dim, int value_dim) {
            require(key_heads > 0 && value_heads > 0 && value_heads % key_heads == 0,
                    "value_heads must be a multiple of key_heads");
            require(key_dim > 0 && key_dim <= 1024, "key_dim must lie in 1..1024");
            require(value_dim > 0 && value_dim % 16 == 0, "value_dim must be a multiple of 16");
            new (self) DeltaShape{key_heads, value_heads, key_dim, value_dim};
          },
          "key_heads"_a, "value_heads"_a, "key_dim"_a, "value_dim"_a);
  m.def("causal_conv", &causal_conv, "device"_a, "x"_a.noconvert(), "positions"_a.noconvert(), "weight"_a, "y"_a.noconvert(),
        ReleaseGil());
  m.def("gate", &gate, "device"_a, "x"_a.noconvert(), "gates"_a.noconvert(), "silu"_a, "y"_a.noconvert(), ReleaseGil());
  m.def("delta_gates", &gates_of_delta_rule, "x"_a.noconvert(), "log_rates"_a, "bias"_a, ReleaseGil());
  m.def("delta_rule", &delta_rule, "device"_a, "shape"_a, "mixed"_a.noconvert(), "decays_and_rates"_a.noconvert(),
        "positions"_a.noconvert(), "state"_a.noconvert(), "out"_a.noconvert(), ReleaseGil());
}

}  // namespace estream::binding
