// Quantising weights without data. The outputs of a panel are lanes, so that nothing is summed over lanes and codes come out
// in the order of the package. Written without fused products, so that every variant makes the same package.
#pragma once
#include "kernels/float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

constexpr int kLanes = 16;
constexpr int kLargestGroup = 128;

inline F16 rounded_to_half(F16 values) {
  uint16_t halves[kLanes];
  store_half(halves, values);
  return load_half(halves);
}

// clamp(round(v)). Adding and taking away 1.5 * 2^23 rounds to nearest even, since weights here are at most 16 scales, and
// costs less than an instruction that rounds.
inline F16 nearest_code(F16 v) {
  const F16 magic = set1(12582912.0f);
  return max(min((v + magic) - magic, set1(7.0f)), set1(-8.0f));
}

// The weights of 16 rows, column after column: columns[k * 16 + row].
inline void load_columns(const void* const* rows, WeightType type, int count, float* columns) {
  F16 r[kLanes];
  if (type == WeightType::bfloat16) {
    for (int k = 0; k < count; k += 2 * kLanes) {
      for (int i = 0; i < kLanes; i++) r[i] = load_bf16_pairs(static_cast<const uint16_t*>(rows[i]) + k);
      transpose(r);
      for (int i = 0; i < kLanes; i++) {
        store(columns + (k + 2 * i) * kLanes, first_bf16(r[i]));
        store(columns + (k + 2 * i + 1) * kLanes, second_bf16(r[i]));
      }
    }
    return;
  }
  for (int k = 0; k < count; k += kLanes) {
    for (int i = 0; i < kLanes; i++)
      r[i] = type == WeightType::float16 ? load_half(static_cast<const uint16_t*>(rows[i]) + k)
                                         : load(static_cast<const float*>(rows[i]) + k);
    transpose(r);
    for (int i = 0; i < kLanes; i++) store(columns + (k + i) * kLanes, r[i]);
  }
}

// What is known of 16 groups: their weights of largest magnitude, and the sums of their squares.
struct Groups {
  F16 peak, squared;
};

inline Groups look_at(const float* columns, int group) {
  F16 low = zero(), high = zero(), squares[4] = {zero(), zero(), zero(), zero()};
  for (int k = 0; k < group; k += 4)
    for (int j = 0; j < 4; j++) {
      const F16 w = load(columns + (k + j) * kLanes);
      low = min(low, w);
      high = max(high, w);
      squares[j] = squares[j] + w * w;
    }
  return {select_greater(high, zero() - low, high, low), (squares[0] + squares[1]) + (squares[2] + squares[3])};
}

// The best scale so far of 16 groups, -peak / divisor, and for the codes that it gives the sums of weight * code and code^2.
struct BestScale {
  F16 divisor = set1(8.0f), products = zero(), squares = set1(1.0f);
};

// Weights in units of -peak / 2048, in pairs of columns: 11 bits suffice to tell scales apart, and whole numbers are fast.
constexpr float kUnits = 2048.0f;
// Then weight * divisor * 16 / 2^15 is the weight in units of the scale.
constexpr float kFactor = 32768.0f / kUnits;

// Judges codes by the angle between them and the weights, which is what their error depends on once the scale fits them.
template <int N>
inline void try_scales(const int16_t* weights, int group, const F16 (&divisors)[N], BestScale& best) {
  Pairs factors[N];
  Sums products[N], squares[N];
  for (int n = 0; n < N; n++) factors[n] = pairs_of(divisors[n] * set1(kFactor), divisors[n] * set1(kFactor));
  for (int k = 0; k < group; k += 2) {
    const Pairs w = load_pairs(weights + k * kLanes);
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

// The divisors of -peak that are the best scales of sixteen 4-bit groups, whose `unit` is -1 / peak: around 8, which gives
// the largest weight the code -8, seven are tried and then two halfway to the neighbours of the best.
inline F16 search_divisors(const float* columns, int group, F16 unit) {
  int16_t weights[kLargestGroup * kLanes];
  const F16 units = unit * set1(kUnits);
  for (int k = 0; k < group; k += 2)
    store_pairs(weights + k * kLanes, pairs_of(load(columns + k * kLanes) * units, load(columns + (k + 1) * kLanes) * units));
  // Multiples of 1 / 16, as half the step is: the factors are exact.
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

// Codes of 16 groups, codes[k * 16 + lane], and the sums of weight * code.
inline F16 choose_codes(const float* columns, int group, F16 inverse, float* codes) {
  F16 products[4] = {zero(), zero(), zero(), zero()};
  for (int k = 0; k < group; k += 4)
    for (int j = 0; j < 4; j++) {
      const F16 w = load(columns + (k + j) * kLanes), code = nearest_code(w * inverse);
      store(codes + (k + j) * kLanes, code);
      products[j] = products[j] + w * code;
    }
  return (products[0] + products[1]) + (products[2] + products[3]);
}

// Scales and codes of sixteen 4-bit groups. The scale that is searched chooses the codes; the one that they are multiplied by
// leaves an error orthogonal to the weights, because the least squared error shrinks every output a little. Why so,
// measured: docs/experiments.md.
inline F16 quantize_4bit(const float* columns, int group, const Groups& groups, float* codes) {
  // A group whose largest weight is smaller has no scale in fp16.
  const F16 unit = keep_where_greater(abs(groups.peak), set1(1e-7f), set1(-1.0f) / groups.peak);
  const F16 inverse = unit * search_divisors(columns, group, unit);
  const F16 products = choose_codes(columns, group, inverse, codes);
  // Where almost all weights have no code the stretched scale would be far off for those that have.
  const F16 coding = set1(1.0f) / inverse, stretched = groups.squared / products, ratio = stretched * inverse;
  const F16 near = select_greater(ratio, set1(0.85f), select_greater(set1(1.15f), ratio, stretched, coding), coding);
  const F16 scale = rounded_to_half(keep_where_greater(abs(inverse), zero(), near));
  // Below the smallest normal half rounding moves a scale so far that codes must be chosen for what it has become.
  const F16 subnormal = select_greater(set1(0x1p-14f), abs(scale), set1(1.0f), zero());
  if (largest_lane(subnormal) > 0.0f) {
    const F16 rounded = keep_where_greater(abs(scale), zero(), set1(1.0f) / scale);
    choose_codes(columns, group, select_greater(subnormal, zero(), rounded, inverse), codes);
  }
  return scale;
}

inline F16 quantize_8bit(const float* columns, int group, const Groups& groups, float* codes) {
  const F16 scale = rounded_to_half(abs(groups.peak) / set1(127.0f));
  const F16 inverse = keep_where_greater(scale, zero(), set1(1.0f) / scale);
  for (int k = 0; k < group * kLanes; k += kLanes)
    store(codes + k, max(min(round(load(columns + k) * inverse), set1(127.0f)), set1(-127.0f)));
  return scale;
}

// The bytes of the codes, four or eight of each group in one.
template <int BITS>
inline void store_codes(const F16* codes, uint8_t* to) {
  F16 bytes[4];
  for (int j = 0; j < 4; j++)
    bytes[j] = BITS == 8 ? codes[j] + set1(128.0f) : (codes[j] + codes[j + 4] * set1(16.0f)) + set1(8.0f + 8.0f * 16.0f);
  store_bytes(to, bytes[0], bytes[1], bytes[2], bytes[3]);
}

// Stores the codes of 16 groups; returns their squared errors.
template <int BITS>
inline F16 finish(const float* columns, const float* codes, int group, F16 scale, uint8_t* to) {
  constexpr int kStep = 32 / BITS;
  F16 error[4] = {zero(), zero(), zero(), zero()};
  for (int k = 0; k < group; k += kStep, to += 4 * kPanel) {
    F16 some[kStep];
    for (int j = 0; j < kStep; j++) {
      some[j] = load(codes + (k + j) * kLanes);
      const F16 d = scale * some[j] - load(columns + (k + j) * kLanes);
      error[j % 4] = error[j % 4] + d * d;
    }
    store_codes<BITS>(some, to);
  }
  return (error[0] + error[1]) + (error[2] + error[3]);
}

inline void pack_block(PackBlock& block) {
  float columns[kLargestGroup * kLanes], codes[kLargestGroup * kLanes];
  for (int lane = 0; lane < kPanel; lane += kLanes) {
    load_columns(block.rows + lane, block.type, block.group, columns);
    const Groups groups = look_at(columns, block.group);
    const bool four = block.bits == 4;
    const F16 scale = (four ? quantize_4bit : quantize_8bit)(columns, block.group, groups, codes);
    const F16 error = (four ? finish<4> : finish<8>)(columns, codes, block.group, scale, block.to + 4 * lane);
    store_half(reinterpret_cast<uint16_t*>(block.to + 4 * block.bits * block.group) + lane, scale);
    store(block.squared_error + lane, error);
    store(block.squared + lane, groups.squared);
  }
}

}  // namespace estream::ESTREAM_VARIANT
