// Attention in float32, by way of the CPU device, which divides queries into jobs.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/cpu_device.h"
#include "tests/harness.h"

namespace estream::tests {

namespace {

// Two sequences in one batch, whose blocks lie in any order. After each, up to where a kernel may read, NaNs show whether it
// uses what it reads there.
struct AttentionTest {
  static constexpr int kFirst = 75, kTokens = 117, kCapacity = 96 + 64, kHeads = 4, kKvHeads = 2, kDim = 24;
  const int value_dim, window;
  const bool has_sinks;
  const AttentionShape shape = {kHeads, kKvHeads, kDim, value_dim, 1.5f, window};
  Random random{5};
  std::vector<float> sinks = random.values(kHeads);
  std::vector<float> q = random.values(kTokens * kHeads * kDim), k = random.values(kTokens * kKvHeads * kDim);
  std::vector<float> v = random.values(kTokens * kKvHeads * value_dim);

  std::vector<float> run(int threads, int at_once) {
    CpuDevice device(threads, true);
    std::vector<float> keys(kKvHeads * kCapacity * kDim, NAN), values(kKvHeads * kCapacity * ((value_dim + 15) / 16 * 16), NAN);
    std::vector<float> out(kTokens * kHeads * value_dim);
    std::vector<int32_t> positions(kTokens), sequences(kTokens), rows_of(kTokens), places(kTokens);
    // The last block of a sequence takes no more than the runs that it needs.
    const int32_t blocks[] = {96, 0, 32};
    for (int t = 0; t < kTokens; t++) {
      rows_of[t] = t;
      positions[t] = t < kFirst ? t : t - kFirst;
      sequences[t] = t < kFirst ? 0 : 2;
      places[t] = blocks[sequences[t] + positions[t] / kKeyBlock] + positions[t] % kKeyBlock;
    }
    const KeyValues kv = {keys.data(), values.data(), kCapacity};
    device.store_key_values(shape, {k.data(), kTokens, kKvHeads * kDim}, {v.data(), kTokens, kKvHeads * value_dim},
                            {rows_of.data(), places.data(), kTokens}, kv);
    for (int t = 0; t < kTokens; t += at_once) {
      const int rows = std::min(at_once, kTokens - t);
      device.attention(shape, {&q[t * kHeads * kDim], rows, kHeads * kDim}, {&positions[t], &sequences[t], blocks}, kv,
                       has_sinks ? sinks.data() : nullptr, {&out[t * kHeads * value_dim], rows, kHeads * value_dim});
    }
    return out;
  }
  void expect(int token, int head, double* out) const {
    std::vector<double> weight(kTokens);
    double total = has_sinks ? std::exp(double{sinks[head]}) : 0.0;
    int begin = token < kFirst ? 0 : kFirst;
    if (window > 0) begin = std::max(begin, token - window + 1);
    for (int t = begin; t <= token; t++) {
      for (int d = 0; d < kDim; d++)
        weight[t] += double{q[(token * kHeads + head) * kDim + d]} * k[(t * kKvHeads + head / 2) * kDim + d];
      total += weight[t] = std::exp(1.5 * weight[t]);
    }
    for (int t = 0; t <= token; t++)
      for (int d = 0; d < value_dim; d++) out[d] += weight[t] / total * v[(t * kKvHeads + head / 2) * value_dim + d];
  }
};

}  // namespace

void attention_matches_its_definition() {
  constexpr int kTokens = AttentionTest::kTokens, kHeads = AttentionTest::kHeads;
  for (const auto& [value_dim, window, sinks] : {std::tuple{8, 0, false},
                                                 {40, 0, true},
                                                 {80, 0, false},
                                                 {40, 1, false},
                                                 {8, 20, true},
                                                 {40, 64, false},
                                                 {80, 70, true}}) {
    AttentionTest test{value_dim, window, sinks};
    std::vector<double> want(kTokens * kHeads * value_dim);
    for (int i = 0; i < kTokens * kHeads; i++) test.expect(i / kHeads, i % kHeads, &want[i * value_dim]);
    for_each_variant([&](const Kernels&) {
      const std::vector<float> out = test.run(1, kTokens);
      CHECK(close(want, out));
      CHECK(same_bits(out, test.run(4, kTokens)) && same_bits(out, test.run(1, 1)));
    });
  }
}

}  // namespace estream::tests
