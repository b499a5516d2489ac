// Norms, rotary embedding, the router and the quantisation of rows.
#include <algorithm>
#include <cmath>

#include "tests/matrices.h"

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

void check_codes(const Quantized& q, const std::vector<float>& x) {
  const int columns = static_cast<int>(x.size()) / q.rows;
  for (int i = 0; i < q.rows * q.columns; i += q.group) {
    const auto value = [&](int k) {
      return i % q.columns + k < columns ? x[i / q.columns * columns + i % q.columns + k] : 0.0f;
    };
    float absmax = 0.0f;
    int sum = 0;
    for (int k = 0; k < q.group; k++) absmax = std::max(absmax, std::fabs(value(k)));
    const float inverse = absmax > 0.0f ? 127.0f / absmax : 0.0f;
    for (int k = 0; k < q.group; k++) {
      sum += q.codes[i + k];
      // The inverse of a subnormal absmax may be infinite. Then every product is, and is clamped.
      CHECK(std::isinf(inverse) ? std::abs(q.codes[i + k]) == 127 : q.codes[i + k] == std::nearbyint(value(k) * inverse));
    }
    CHECK(q.sums[i / q.group] == sum && q.scales[i / q.group] == absmax / 127.0f);
  }
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

void codes_are_exact_in_every_variant() {
  constexpr float kFactors[] = {1.0f, 1e30f, 3e-3f, 0.0f, 1e-36f, 1e-40f};
  Random random{2};
  std::vector<float> x = random.values(6 * 200);
  for (int i = 0; i < 6 * 200; i++) x[i] *= kFactors[i / 200];
  for (const int group : {32, 64, 128}) {
    const Quantized first = quantize(*find_kernels("portable"), x, 6, 256, group);
    check_codes(first, x);
    for_each_variant([&](const Kernels& kernels) {
      const Quantized q = quantize(kernels, x, 6, 256, group);
      CHECK(q.codes == first.codes && same_bits(q.scales, first.scales) && q.sums == first.sums);
    });
  }
}

}  // namespace estream::tests
