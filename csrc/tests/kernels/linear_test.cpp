// Linear attention: convolution, gates and the delta rule.
#include <algorithm>
#include <cmath>

#include "core/cpu_device.h"
#include "tests/harness.h"

namespace estream::tests {

namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Two sequences in one batch, whose states must not meet.
struct LinearTest {
  static constexpr int kFirst = 21, kTokens = 40, kConvKernelSize = 4;
  const DeltaShape shape;
  const int width = 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim;
  const int values = shape.value_heads * shape.value_dim;
  Random random{9};
  std::vector<float> x = random.values((kTokens + kConvKernelSize - 1) * width),
                     weight = random.values(kConvKernelSize * width);
  std::vector<float> rates = random.values(kTokens * 2 * shape.value_heads), gates = random.values(kTokens * values);
  std::vector<float> log_rates = random.values(shape.value_heads), bias = random.values(shape.value_heads);
  std::vector<int32_t> positions;

  explicit LinearTest(DeltaShape shape) : shape(shape) {
    for (int t = 0; t < kTokens; t++) positions.push_back(t < kFirst ? t : t - kFirst);
  }

  std::vector<float> run(int threads, int at_once) {
    CpuDevice device(threads, false);
    std::vector<float> mixed(kTokens * width), out(kTokens * values), gated(kTokens * (values + 3), NAN);
    std::vector<float> state(shape.value_heads * shape.key_dim * shape.value_dim, NAN), decays = rates;
    for (int t = 0; t < kTokens; t += at_once) {
      const int rows = std::min(at_once, kTokens - t);
      device.causal_conv({&x[t * width], rows + kConvKernelSize - 1, width}, &positions[t], weight.data(), kConvKernelSize,
                         {&mixed[t * width], rows, width});
      const Rows gate_rows = {&decays[t * 2 * shape.value_heads], rows, 2 * shape.value_heads};
      delta_gates(gate_rows, log_rates.data(), bias.data());
      const Rows read = {&out[t * values], rows, values};
      device.delta_rule(shape, {&mixed[t * width], rows, width}, gate_rows, &positions[t], state.data(), read);
      device.gate(read, {&gates[t * values], rows, values}, true, {&gated[t * (values + 3)], rows, values + 3});
    }
    return gated;
  }

  std::vector<double> convolved(int token) const {
    std::vector<double> row(width);
    for (int c = 0; c < width; c++) {
      for (int back = 0; back < kConvKernelSize && back <= positions[token]; back++)
        row[c] +=
            double{x[(token + kConvKernelSize - 1 - back) * width + c]} * weight[(kConvKernelSize - 1 - back) * width + c];
      row[c] *= sigmoid(row[c]);
    }
    return row;
  }
  static void normalise(std::vector<double>& v, double factor) {
    double squares = 1e-6;
    for (const double a : v) squares += a * a;
    for (double& a : v) a *= factor / std::sqrt(squares);
  }
  std::vector<double> expected() const {
    std::vector<double> out(kTokens * (values + 3)), state;
    const int keys = shape.key_heads * shape.key_dim, size = shape.key_dim * shape.value_dim;
    for (int t = 0; t < kTokens; t++) {
      if (positions[t] == 0) state.assign(shape.value_heads * size, 0.0);
      const std::vector<double> row = convolved(t);
      for (int h = 0; h < shape.value_heads; h++) {
        const auto at = row.begin() + h / (shape.value_heads / shape.key_heads) * shape.key_dim;
        std::vector<double> q(at, at + shape.key_dim), k(at + keys, at + keys + shape.key_dim);
        normalise(q, 1.0 / std::sqrt(shape.key_dim));
        normalise(k, 1.0);
        const float* rate = &rates[t * 2 * shape.value_heads + h];
        const double step = std::log1p(std::exp(double{rate[shape.value_heads]} + bias[h]));
        const double decay = std::exp(-std::exp(double{log_rates[h]}) * step);
        for (int v = 0; v < shape.value_dim; v++) {
          double recalled = 0.0, read = 0.0;
          double* s = &state[h * size + v];
          for (int i = 0; i < shape.key_dim; i++) recalled += k[i] * (s[i * shape.value_dim] *= decay);
          const double change = (row[2 * keys + h * shape.value_dim + v] - recalled) * sigmoid(rate[0]);
          for (int i = 0; i < shape.key_dim; i++) read += q[i] * (s[i * shape.value_dim] += k[i] * change);
          const double gate = gates[t * values + h * shape.value_dim + v];
          out[t * (values + 3) + h * shape.value_dim + v] = read * gate * sigmoid(gate);
        }
      }
    }
    return out;
  }
};

}  // namespace

void linear_attention_matches_its_definition() {
  for (const DeltaShape shape : {DeltaShape{2, 4, 12, 16}, {1, 3, 40, 80}, {3, 3, 16, 64}}) {
    LinearTest test(shape);
    const std::vector<double> want = test.expected();
    for_each_variant([&](const Kernels&) {
      const std::vector<float> out = test.run(1, LinearTest::kTokens);
      CHECK(close(want, out));
      CHECK(same_bits(out, test.run(4, LinearTest::kTokens)) && same_bits(out, test.run(2, 1)) &&
            same_bits(out, test.run(1, 7)));
    });
  }
}

// Sanitizers judge the addresses.
void linear_attention_takes_no_rows() {
  const DeltaShape shape{2, 4, 12, 16};
  for_each_variant([&](const Kernels&) {
    CpuDevice device(2, false);
    std::vector<float> state(shape.value_heads * shape.key_dim * shape.value_dim, 3.0f);
    const std::vector<float> before = state;
    device.delta_rule(shape, {nullptr, 0, 112}, {nullptr, 0, 8}, nullptr, state.data(), {nullptr, 0, 64});
    CHECK(same_bits(state, before));
    device.gate({nullptr, 0, 64}, {nullptr, 0, 64}, true, {nullptr, 0, 64});
    delta_gates({nullptr, 0, 8}, nullptr, nullptr);
  });
}

}  // namespace estream::tests
