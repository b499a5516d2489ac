// Quantises weights without calibration data. A SIMD vector holds one weight of sixteen outputs, so nothing is reduced across a
// vector and codes come out in the order of the package. There is no fused multiply-add, so every variant makes the same
// package.
#pragma once
#include "kernels/float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

// Floats in an F16.
constexpr int kSimdWidth = 16;
constexpr int kLargestGroup = 128;

inline F16 rounded_to_half(F16 values) {
  uint16_t halves[kSimdWidth];
  store_half(halves, values);
  return load_half(halves);
}

// clamp(round(v), -8, 7). Adding and subtracting 1.5 * 2^23 rounds to nearest even, because |v| is at most 16, and is faster
// than the rounding instruction.
inline F16 nearest_code(F16 v) {
  const F16 magic = set1(12582912.0f);
  return max(min((v + magic) - magic, set1(7.0f)), set1(-8.0f));
}

// The weights of 16 rows, column after column: columns[k * 16 + row].
inline void load_columns(const void* const* rows, WeightType type, int count, float* columns) {
  F16 r[kSimdWidth];
  if (type == WeightType::bfloat16) {
    for (int k = 0; k < count; k += 2 * kSimdWidth) {
      for (int i = 0; i < kSimdWidth; i++) r[i] = load_bf16_pairs(static_cast<const uint16_t*>(rows[i]) + k);
      transpose(r);
      for (int i = 0; i < kSimdWidth; i++) {
        store(columns + (k + 2 * i) * kSimdWidth, first_bf16(r[i]));
        store(columns + (k + 2 * i + 1) * kSimdWidth, second_bf16(r[i]));
      }
    }
    return;
  }
  for (int k = 0; k < count; k += kSimdWidth) {
    for (int i = 0; i < kSimdWidth; i++)
      r[i] = type == WeightType::float16 ? load_half(static_cast<const uint16_t*>(rows[i]) + k)
                                         : load(static_cast<const float*>(rows[i]) + k);
    transpose(r);
    for (int i = 0; i < kSimdWidth; i++) store(columns + (k + i) * kSimdWidth, r[i]);
  }
}

// Of each of 16 groups: the weight of the largest magnitude, with its sign, and the sum of the squares.
struct GroupStatistics {
  F16 signed_absmax, squared;
};

inline GroupStatistics group_statistics(const float* columns, int group) {
  F16 low = zero(), high = zero(), squares[4] = {zero(), zero(), zero(), zero()};
  for (int k = 0; k < group; k += 4)
    for (int j = 0; j < 4; j++) {
      const F16 w = load(columns + (k + j) * kSimdWidth);
      low = min(low, w);
      high = max(high, w);
      squares[j] = squares[j] + w * w;
    }
  return {select_greater(high, zero() - low, high, low), (squares[0] + squares[1]) + (squares[2] + squares[3])};
}

// The best scales of 16 groups so far, -signed_absmax / divisor. For their codes, the sums of weight * code and of code^2.
struct BestScale {
  F16 divisor = set1(8.0f), products = zero(), squares = set1(1.0f);
};

// The search counts weights in units of -signed_absmax / 2048: 11 bits are enough to compare scales, and integers are fast.
constexpr float kUnits = 2048.0f;
// So weight * divisor * 16 / 2^15 is the weight in units of the scale.
constexpr float kFactor = 32768.0f / kUnits;

// Prefers the codes with the smallest angle to the weights: with the best scale for the codes, the error depends on that angle
// alone.
template <int N>
inline void try_scales(const int16_t* weights, int group, const F16 (&divisors)[N], BestScale& best) {
  Pairs factors[N];
  Sums products[N], squares[N];
  for (int n = 0; n < N; n++) factors[n] = pairs_of(divisors[n] * set1(kFactor), divisors[n] * set1(kFactor));
  for (int k = 0; k < group; k += 2) {
    const Pairs w = load_pairs(weights + k * kSimdWidth);
    for (int n = 0; n < N; n++) {
      const Pairs code = bounded(rounded_product(w, factors[n]), -8, 7);
      products[n] = add_products(products[n], w, code);
      squares[n] = add_products(squares[n], code, code);
    }
  }
  for (int n = 0; n < N; n++) {
    const F16 p = floats_of(products[n]), s = floats_of(squares[n]);
    const F16 mine = p * p * best.squares, others = best.products * best.products * s;
    best.divisor = select_greater(mine, others, divisors[n], best.divisor);
    best.squares = select_greater(mine, others, s, best.squares);
    best.products = select_greater(mine, others, p, best.products);
  }
}

// Searches the best scales, -signed_absmax / divisor, of sixteen 4-bit groups; `unit` is -1 / signed_absmax. A divisor of 8
// would give the largest weight the code -8. The search tries seven divisors around 8, then two half a step beside the best.
inline F16 search_divisors(const float* columns, int group, F16 unit) {
  int16_t weights[kLargestGroup * kSimdWidth];
  const F16 units = unit * set1(kUnits);
  for (int k = 0; k < group; k += 2)
    store_pairs(weights + k * kSimdWidth,
                pairs_of(load(columns + k * kSimdWidth) * units, load(columns + (k + 1) * kSimdWidth) * units));
  // The step and the first divisor are such that all factors are exact: half a step is a multiple of 1 / 16.
  constexpr float kStep = 0.375f;
  const float lowest = group == 32 ? 6.875f : group == 64 ? 7.25f : 7.5f;
  F16 some[4], others[3];
  for (int n = 0; n < 4; n++) some[n] = set1(lowest + static_cast<float>(2 * n) * kStep);
  for (int n = 0; n < 3; n++) others[n] = set1(lowest + static_cast<float>(2 * n + 1) * kStep);
  BestScale best;
  try_scales(weights, group, some, best);
  try_scales(weights, group, others, best);
  const F16 near[2] = {best.divisor - set1(0.5f * kStep), best.divisor + set1(0.5f * kStep)};
  try_scales(weights, group, near, best);
  return best.divisor;
}

// Chooses the codes of 16 groups, codes[k * 16 + group]; returns the sums of weight * code.
inline F16 choose_codes(const float* columns, int group, F16 inverse, float* codes) {
  F16 products[4] = {zero(), zero(), zero(), zero()};
  for (int k = 0; k < group; k += 4)
    for (int j = 0; j < 4; j++) {
      const F16 w = load(columns + (k + j) * kSimdWidth), code = nearest_code(w * inverse);
      store(codes + (k + j) * kSimdWidth, code);
      products[j] = products[j] + w * code;
    }
  return (products[0] + products[1]) + (products[2] + products[3]);
}

// Scales and codes of sixteen 4-bit groups. The searched scale chooses the codes. The stored scale is another one: it leaves an
// error orthogonal to the weights, because the scale of least squared error makes every output a little too small.
// docs/experiments.md has the measurements.
inline F16 quantize_4bit(const float* columns, int group, const GroupStatistics& groups, float* codes) {
  // A group whose largest weight is smaller has no scale in fp16.
  const F16 unit = keep_where_greater(abs(groups.signed_absmax), set1(1e-7f), set1(-1.0f) / groups.signed_absmax);
  const F16 inverse = unit * search_divisors(columns, group, unit);
  const F16 products = choose_codes(columns, group, inverse, codes);
  // Where almost all codes are zero, the stretched scale would be far off for the others.
  const F16 coding = set1(1.0f) / inverse, stretched = groups.squared / products, ratio = stretched * inverse;
  const F16 near = select_greater(ratio, set1(0.85f), select_greater(set1(1.15f), ratio, stretched, coding), coding);
  const F16 scale = rounded_to_half(keep_where_greater(abs(inverse), zero(), near));
  // Rounding to a subnormal half moves a scale so far that codes must be chosen again for the rounded scale.
  const F16 subnormal = select_greater(set1(0x1p-14f), abs(scale), set1(1.0f), zero());
  if (reduce_max(subnormal) > 0.0f) {
    const F16 rounded = keep_where_greater(abs(scale), zero(), set1(1.0f) / scale);
    choose_codes(columns, group, select_greater(subnormal, zero(), rounded, inverse), codes);
  }
  return scale;
}

inline F16 quantize_8bit(const float* columns, int group, const GroupStatistics& groups, float* codes) {
  const F16 scale = rounded_to_half(abs(groups.signed_absmax) / set1(127.0f));
  const F16 inverse = keep_where_greater(scale, zero(), set1(1.0f) / scale);
  for (int k = 0; k < group * kSimdWidth; k += kSimdWidth)
    store(codes + k, max(min(round(load(columns + k) * inverse), set1(127.0f)), set1(-127.0f)));
  return scale;
}

// Packs four (8-bit) or eight (4-bit) codes of each group into a 32-bit word.
template <int BITS>
inline void store_codes(const F16* codes, uint8_t* to) {
  F16 bytes[4];
  for (int j = 0; j < 4; j++)
    bytes[j] = BITS == 8 ? codes[j] + set1(128.0f) : (codes[j] + codes[j + 4] * set1(16.0f)) + set1(8.0f + 8.0f * 16.0f);
  store_bytes(to, bytes[0], bytes[1], bytes[2], bytes[3]);
}

// Stores the codes of 16 groups. Returns their squared errors.
template <int BITS>
inline F16 finish(const float* columns, const float* codes, int group, F16 scale, uint8_t* to) {
  constexpr int kStep = 32 / BITS;
  F16 error[4] = {zero(), zero(), zero(), zero()};
  for (int k = 0; k < group; k += kStep, to += 4 * kPanel) {
    F16 some[kStep];
    for (int j = 0; j < kStep; j++) {
      some[j] = load(codes + (k + j) * kSimdWidth);
      const F16 d = scale * some[j] - load(columns + (k + j) * kSimdWidth);
      error[j % 4] = error[j % 4] + d * d;
    }
    store_codes<BITS>(some, to);
  }
  return (error[0] + error[1]) + (error[2] + error[3]);
}

inline void pack_block(PackBlock& block) {
  float columns[kLargestGroup * kSimdWidth], codes[kLargestGroup * kSimdWidth];
  for (int first = 0; first < kPanel; first += kSimdWidth) {
    load_columns(block.rows + first, block.type, block.group, columns);
    const GroupStatistics groups = group_statistics(columns, block.group);
    const bool four = block.bits == 4;
    const F16 scale = (four ? quantize_4bit : quantize_8bit)(columns, block.group, groups, codes);
    const F16 error = (four ? finish<4> : finish<8>)(columns, codes, block.group, scale, block.to + 4 * first);
    store_half(reinterpret_cast<uint16_t*>(block.to + 4 * block.bits * block.group) + first, scale);
    store(block.squared_error + first, error);
    store(block.squared + first, groups.squared);
  }
}

}  // namespace estream::ESTREAM_VARIANT
