// Experts of the CPU device: one page for given rows, or a run of pages for the rows that are routed to them.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <type_traits>
#include <vector>

#include "python/binding_rows.h"

namespace estream::binding {

namespace {

// Offsets count from gate_up's first byte; those of absent biases are zero.
struct Expert {
  Matrix gate_up, down;
  int64_t down_offset, gate_up_bias_offset, down_bias_offset;
  float alpha, limit;

  Expert(Matrix gate_up, Matrix down, int64_t down_offset, int64_t gate_up_bias_offset, int64_t down_bias_offset, float alpha,
         float limit)
      : gate_up(gate_up),
        down(down),
        down_offset(down_offset),
        gate_up_bias_offset(gate_up_bias_offset),
        down_bias_offset(down_bias_offset),
        alpha(alpha),
        limit(limit) {
    require(gate_up.outputs % 2 == 0 && gate_up.outputs / 2 <= down.inputs, "down does not fit gate and up");
  }
  ExpertWeights at(uintptr_t address) const {
    return {gate_up.at(address),
            down.at(address + down_offset),
            gate_up_bias_offset ? floats_at(address + gate_up_bias_offset) : nullptr,
            down_bias_offset ? floats_at(address + down_bias_offset) : nullptr,
            alpha,
            limit};
  }
};

size_t row_count(const Quantized& x) { return x.codes.shape(0); }
size_t row_count(const Floats& x) { return x.shape(0); }

// What calls with experts of one shape take beside the rows: checked here, once for all of them.
template <typename X>
struct Call {
  CpuDevice& device;
  const Expert& expert;
  Activations x;
  int64_t x_rows;
  const Floats& y;
  ExpertScratch scratch;

  Call(CpuDevice& device, const Expert& e, const X& x, const Floats& hidden, const Quantized& quantized, const Floats& y)
      : device(device),
        expert(e),
        x(activations(e.gate_up, x)),
        x_rows(static_cast<int64_t>(row_count(x))),
        y(y),
        scratch{hidden.data(), nullptr, nullptr, nullptr, static_cast<int>(hidden.shape(0))} {
    require(static_cast<int>(y.shape(1)) >= e.down.outputs, "the result does not fit the expert");
    require(hidden.shape(0) >= 1 && static_cast<int>(hidden.shape(1)) == e.down.inputs, "scratch does not fit the expert");
    if constexpr (std::is_same_v<X, Quantized>) {
      require(quantized.codes.shape(0) == hidden.shape(0) && quantized.group() == e.down.group &&
                  static_cast<int>(quantized.codes.shape(1)) == e.down.inputs,
              "quantised scratch does not fit the expert");
      scratch.codes = quantized.codes.data();
      scratch.scales = quantized.scales.data();
      scratch.sums = quantized.sums.data();
    }
  }

  void run(uintptr_t address, const int32_t* tokens, const Scatter& to, size_t count) const {
    check_rows(to.rows, count, static_cast<int64_t>(y.shape(0)), "a row of the result is out of range");
    check_rows(tokens, count, x_rows, "a token is out of range");
    device.expert(expert.at(address), x, tokens, to, static_cast<int>(count), scratch, y.data(),
                  static_cast<int64_t>(y.shape(1)));
  }
};

template <typename X>
void expert(CpuDevice& device, const Expert& e, uintptr_t address, const X& x, const Array<int32_t, 1>& tokens,
            const Array<int32_t, 1>& to, const Array<float, 1>& weights, const Floats& hidden, const Quantized& quantized,
            const Floats& y) {
  const size_t count = tokens.shape(0);
  require(weights.shape(0) == count && to.shape(0) == count, "tokens, rows and weights differ in length");
  Call<X>(device, e, x, hidden, quantized, y).run(address, tokens.data(), {to.data(), weights.data()}, count);
}

// A page's address, and where its own part of the routed tokens begins and ends.
using RoutedPage = std::tuple<uintptr_t, size_t, size_t>;

template <typename X>
void experts(CpuDevice& device, const Expert& e, const std::vector<RoutedPage>& pages, const X& x,
             const Array<int32_t, 1>& tokens, const Array<float, 1>& weights, const Floats& hidden, const Quantized& quantized,
             const Floats& y) {
  require(weights.shape(0) == tokens.shape(0), "tokens and weights differ in length");
  const Call<X> call(device, e, x, hidden, quantized, y);
  for (const auto& [address, first, end] : pages) {
    require(first <= end && end <= tokens.shape(0), "a page's tokens are out of range");
    const int32_t* own = tokens.data() + first;
    call.run(address, own, {own, weights.data() + first}, end - first);
  }
}

template <typename X>
void bind_calls(nb::class_<CpuDevice>& device, const char* expert_doc, const char* experts_doc) {
  device
      .def("expert", &expert<X>, "expert"_a, "address"_a, "x"_a.noconvert(), "tokens"_a.noconvert(), "to"_a.noconvert(),
           "weights"_a.noconvert(), "hidden"_a.noconvert(), "quantized"_a, "y"_a.noconvert(), ReleaseGil(), expert_doc)
      .def("experts", &experts<X>, "expert"_a, "pages"_a, "x"_a.noconvert(), "tokens"_a.noconvert(), "weights"_a.noconvert(),
           "hidden"_a.noconvert(), "quantized"_a, "y"_a.noconvert(), ReleaseGil(), experts_doc);
}

}  // namespace

void bind_experts(nb::module_& m, nb::class_<CpuDevice>& device) {
  nb::class_<Expert>(m, "Expert",
                     "The layout of an expert's page, or of another MLP's: matrices ``gate_up`` and ``down``, and biases.")
      .def(nb::init<Matrix, Matrix, int64_t, int64_t, int64_t, float, float>(), "gate_up"_a, "down"_a, "down_offset"_a,
           "gate_up_bias_offset"_a = 0, "down_bias_offset"_a = 0, "alpha"_a = 0.0f, "limit"_a = 0.0f,
           R"(``gate_up`` [2 * width, hidden] alternates 16 outputs of gate and the matching 16 of up; ``down`` is
[hidden, width rounded up to whole groups]. Offsets count bytes from the first byte of ``gate_up``; 0 for a
bias that does not exist. The gate is silu(gate) * up, or with a ``limit`` the clamped SwiGLU of gpt-oss:
gate * sigmoid(alpha * gate) * (up + 1), where gate <= limit and abs(up) <= limit.)");
  bind_calls<Quantized>(
      device,
      R"(Run an expert for the rows tokens[i] of ``x`` and add its results: y[to[i]] += weights[i] * result[i].

address: of the page, a multiple of 64.
x: [rows, hidden]; quantised in groups as long as those of ``gate_up``.
tokens, to, weights: [n]. ``to`` must not name a row twice.
hidden: [room, inputs of down], scratch for at least one token; more of it computes more tokens at a time.
quantized: scratch of the same shape, in groups as long as those of ``down``; float activations ignore it.
y: [rows, at least hidden].)",
      R"(Compute several experts of one layout, in the order of ``pages``: tuples (address, first, end). Each takes
its own part [first, end) of ``tokens`` and ``weights`` and adds to the rows of ``y`` that ``tokens`` names.
The rest is as in ``expert``.)");
  bind_calls<Floats>(device, "The same for float32 activations.", "The same for float32 activations.");
}

}  // namespace estream::binding
