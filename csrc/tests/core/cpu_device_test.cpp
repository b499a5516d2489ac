// Experts on the CPU device, for any number of threads and tokens.
#include "core/cpu_device.h"

#include <algorithm>
#include <cmath>

#include "tests/matrices.h"

namespace estream::tests {

namespace {

struct ExpertTest {
  // More tokens than the scratch has room for.
  static constexpr int kTokens = 230, kRoom = 200, kHidden = 64, kWidth = 48, kGroup = 32;
  Random random{7};
  Matrix gate_up = random_matrix(random, 2 * kWidth, kHidden, 4, kGroup),
         down = random_matrix(random, kHidden, kHidden, 8, kGroup);
  std::vector<float> x = random.values(kTokens * kHidden), weights = random.values(kTokens);
  std::vector<float> gate_up_bias = random.values(2 * kWidth), down_bias = random.values(kHidden);
  bool clamped = false;

  ExpertWeights expert() const {
    if (!clamped) return {gate_up.packed, down.packed};
    return {gate_up.packed, down.packed, gate_up_bias.data(), down_bias.data(), 1.702f, 0.6f};
  }
  double gated(double gate, double up) const {
    if (!clamped) return silu(gate) * up;
    const double g = std::min(gate, 0.6), u = std::clamp(up, -0.6, 0.6);
    return g / (1.0 + std::exp(-1.702 * g)) * (u + 1.0);
  }

  std::vector<float> run(int threads, bool quantized, int at_once) {
    CpuDevice device(threads, false);
    Quantized q{kTokens, kHidden, kGroup}, s{kRoom, kHidden, kGroup};
    device.quantize({x.data(), kTokens, kHidden}, kHidden, {q.codes.data(), q.scales.data(), q.sums.data(), kHidden, kGroup});
    const Activations in = quantized ? Activations{q.view(), nullptr, 0} : Activations{{}, x.data(), kHidden};
    std::vector<float> hidden(kRoom * kHidden, NAN), y(kTokens * kHidden);
    std::vector<int32_t> from(kTokens), to(kTokens);
    for (int i = 0; i < kTokens; i++) from[i] = kTokens - 1 - i, to[i] = (i + 7) % kTokens;
    for (int i = 0; i < kTokens; i += at_once)
      device.expert(expert(), in, &from[i], {&to[i], &weights[i]}, std::min(at_once, kTokens - i),
                    {hidden.data(), s.codes.data(), s.scales.data(), s.sums.data(), kRoom}, y.data(), kHidden);
    return y;
  }
  std::vector<double> expected() const {
    std::vector<double> gu = products(gate_up, kTokens, [&](int r, int k) { return x[(kTokens - 1 - r) * kHidden + k]; });
    for (size_t i = 0; clamped && i < gu.size(); i++) gu[i] += gate_up_bias[i % (2 * kWidth)];
    std::vector<double> results = products(down, kTokens, [&](int r, int k) {
      const double* gate = &gu[r * 2 * kWidth + k / 16 * kPanel + k % 16];
      return k < kWidth ? gated(gate[0], gate[16]) : 0.0;
    });
    for (size_t i = 0; clamped && i < results.size(); i++) results[i] += down_bias[i % kHidden];
    std::vector<double> y(results.size());
    for (int i = 0; i < kTokens * kHidden; i++) y[(i + 7 * kHidden) % (kTokens * kHidden)] = weights[i / kHidden] * results[i];
    return y;
  }
};

}  // namespace

void experts_do_not_depend_on_threads_or_company() {
  for (const bool clamped : {false, true}) {
    ExpertTest test;
    test.clamped = clamped;
    const std::vector<double> want = test.expected();
    for_each_variant([&](const Kernels&) {
      for (const bool quantized : {false, true}) {
        const std::vector<float> y = test.run(1, quantized, ExpertTest::kTokens);
        // Quantised activations are off by up to half a step of 1 / 127.
        CHECK(close(want, y, quantized ? 2e-2 : 2e-5));
        CHECK(same_bits(y, test.run(4, quantized, ExpertTest::kTokens)) && same_bits(y, test.run(1, quantized, 1)));
      }
    });
  }
}

}  // namespace estream::tests
