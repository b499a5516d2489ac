// The kernels without packed matrices: norm, rope, router, attention, checksum and routing.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/cpu_device.h"
#include "core/routing.h"
#include "tests/harness.h"

namespace estream::tests {

namespace {

void check_norm(const Kernels& kernels, Random& random, int columns) {
  const std::vector<float> x = random.values(columns), weight = random.values(columns);
  std::vector<float> y(columns);
  std::vector<double> want(columns);
  double squares = 0.0;
  for (const float v : x) squares += double{v} * v;
  for (int i = 0; i < columns; i++) want[i] = x[i] / std::sqrt(squares / columns + 1e-5) * weight[i];
  kernels.rms_norm(x.data(), weight.data(), 1e-5f, y.data(), columns);
  CHECK(close(want, y));
}

void check_layer_norm(const Kernels& kernels, Random& random, int columns) {
  const std::vector<float> x = random.values(columns), weight = random.values(columns), bias = random.values(columns);
  std::vector<float> y(columns);
  std::vector<double> want(columns);
  double mean = 0.0, squares = 0.0;
  for (const float v : x) mean += double{v} / columns;
  for (const float v : x) squares += (v - mean) * (v - mean);
  for (int i = 0; i < columns; i++) want[i] = (x[i] - mean) / std::sqrt(squares / columns + 1e-2) * weight[i] + bias[i];
  kernels.layer_norm(x.data(), weight.data(), bias.data(), 1e-2f, y.data(), columns);
  CHECK(close(want, y));
}

// Heads of `head` values, of which the first 2 * half are rotated.
void check_rope(const Kernels& kernels, Random& random, int half, int head) {
  std::vector<float> x = random.values(3 * head);
  const std::vector<float> c = random.values(half), s = random.values(half);
  std::vector<double> want(x.begin(), x.end());
  for (int i = 0; i < 3 * head; i++) {
    const int at = i % head, pair = at % half;
    if (at < 2 * half) want[i] = double{x[i]} * c[pair] + (at < half ? -double{x[i + half]} : double{x[i - half]}) * s[pair];
  }
  kernels.rope(x.data(), c.data(), s.data(), 3, head, 2 * half);
  CHECK(close(want, x));
}

void check_router(const Kernels& kernels, Random& random, int columns, int rows) {
  constexpr int kHidden = 37, kStride = 40;
  const std::vector<float> weight = random.values(kHidden * columns), x = random.values(rows * kStride);
  std::vector<float> logits(rows * columns);
  std::vector<double> want(logits.size());
  for (int i = 0; i < rows * columns; i++)
    for (int k = 0; k < kHidden; k++) want[i] += double{x[i / columns * kStride + k]} * weight[k * columns + i % columns];
  kernels.router(x.data(), kStride, rows, weight.data(), kHidden, columns, logits.data());
  CHECK(close(want, logits));
}

// Two sequences in one batch. Behind each, up to where a kernel may read, lies what must not matter.
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
    std::vector<int32_t> positions(kTokens), bases(kTokens), places(kTokens);
    for (int t = 0; t < kTokens; t++) {
      positions[t] = t < kFirst ? t : t - kFirst;
      places[t] = positions[t] + (bases[t] = t < kFirst ? 0 : 96);
    }
    const KeyValues kv = {keys.data(), values.data(), kCapacity};
    device.store_key_values(shape, {k.data(), kTokens, kKvHeads * kDim}, {v.data(), kTokens, kKvHeads * value_dim},
                            places.data(), kv);
    for (int t = 0; t < kTokens; t += at_once) {
      const int rows = std::min(at_once, kTokens - t);
      device.attention(shape, {&q[t * kHeads * kDim], rows, kHeads * kDim}, &positions[t], &bases[t], kv,
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

void check_routing(const float* logits, int experts, int top, bool normalise, const int32_t* ids, const float* weights) {
  std::vector<int32_t> order(experts);
  for (int e = 0; e < experts; e++) order[e] = e;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  CHECK(std::equal(ids, ids + top, order.begin()));
  double total = 0.0;
  for (int i = 0; i < (normalise ? top : experts); i++) total += std::exp(double{logits[order[i]]});
  for (int i = 0; i < top; i++) CHECK(std::fabs(weights[i] - std::exp(double{logits[order[i]]}) / total) < 1e-6);
}

}  // namespace

void float_kernels_match_their_definition() {
  Random random{4};
  for_each_variant([&](const Kernels& kernels) {
    for (const int columns : {1, 16, 44, 130}) check_norm(kernels, random, columns);
    for (const int columns : {1, 16, 44, 130}) check_layer_norm(kernels, random, columns);
    for (const int half : {1, 16, 22}) check_rope(kernels, random, half, 2 * half), check_rope(kernels, random, half, 50);
    for (const int columns : {16, 32, 80})
      for (int rows = 1; rows <= 9; rows++) check_router(kernels, random, columns, rows);
  });
}

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

void checksums_are_those_of_xxh3() {
  const std::vector<uint8_t> bytes = file_bytes(0, 20000);
  for_each_variant([&](const Kernels& kernels) {
    CHECK(kernels.checksum(bytes.data(), 0) == 0x2d06800538d394c2u &&
          kernels.checksum(bytes.data(), 100) == 0x604833b2d90d0189u);
    CHECK(kernels.checksum(bytes.data(), 20000) == 0x68288119431c0e24u);
  });
}

void routing_breaks_ties_by_id() {
  constexpr int kRows = 40, kExperts = 10, kColumns = 16, kTop = 4;
  Random random{8};
  std::vector<float> logits(kRows * kColumns, 99.0f), weights(kRows * kTop);  // columns behind the experts do not count
  std::vector<int32_t> ids(kRows * kTop);
  for (int i = 0; i < kRows * kExperts; i++)
    logits[i / kExperts * kColumns + i % kExperts] = static_cast<float>(random.below(4));
  for (const bool normalise : {false, true}) {
    route({kExperts, kTop, Scoring::softmax, normalise}, {}, logits.data(), kRows, kColumns, ids.data(), weights.data());
    for (int r = 0; r < kRows; r++)
      check_routing(&logits[r * kColumns], kExperts, kTop, normalise, &ids[r * kTop], &weights[r * kTop]);
  }
}

}  // namespace estream::tests
