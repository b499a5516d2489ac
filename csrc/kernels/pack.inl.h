// Quantising one group of weights. Written without fused products, so that every variant makes the same package.
#pragma once
#include <cstring>

#include "float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

inline uint16_t float_to_half(float value) {
  uint16_t halves[16];
  store_half(halves, set1(value));
  return halves[0];
}

inline F16 rounded_to_half(F16 values) {
  uint16_t halves[16];
  store_half(halves, values);
  return load_half(halves);
}

inline float rounded_to_half(float value) {
  float floats[16];
  store(floats, rounded_to_half(set1(value)));
  return floats[0];
}

// Ordered as the values are where those are not negative.
inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

constexpr int kCandidates = 16;

// clamp(round(v)). Adding and taking away 1.5 * 2^23 rounds to nearest even, since weights here are at most 16 scales, and
// costs less than an instruction that rounds.
inline F16 nearest_code(F16 v) {
  const F16 magic = set1(12582912.0f);
  return max(min((v + magic) - magic, set1(7.0f)), set1(-8.0f));
}

// Sums of x^2 and x * code: their quotient is the scale that leaves an error orthogonal to x.
template <int GROUP>
float orthogonal_scale(const float* x, float coding) {
  F16 xx = zero(), xq = zero();
  const F16 inverse = set1(1.0f / coding);
  for (int i = 0; i < GROUP; i += 16) {
    const F16 v = load(x + i);
    xx = xx + v * v;
    xq = xq + v * nearest_code(v * inverse);
  }
  const float product = sum_tree(xq);
  return product != 0.0f ? rounded_to_half(sum_tree(xx) / product) : 0.0f;
}

// The scale of a 4-bit group. Of sixteen scales around -peak / 8, which give the largest weight about the code -8, the one
// of least squared error is taken; then it is stretched so that the error is orthogonal to the weights, because the least
// squared error shrinks every output a little. Why so, measured: docs/experiments.md. Sets `coding` to the scale by which
// the codes are chosen and returns the one by which they are multiplied.
template <int GROUP>
float search_scale(const float* x, float peak, float& coding) {
  constexpr float lowest = GROUP == 32 ? 7.0f : GROUP == 64 ? 7.25f : 7.5f;
  constexpr float highest = GROUP == 32 ? 9.0f : GROUP == 64 ? 9.5f : 10.0f;
  float divisors[kCandidates], scales[kCandidates], errors[kCandidates];
  for (int k = 0; k < kCandidates; k++)
    divisors[k] = lowest + static_cast<float>(k) * (highest - lowest) / static_cast<float>(kCandidates - 1);
  const F16 scale = rounded_to_half(set1(-peak) / load(divisors)), inverse = set1(1.0f) / scale;
  store(scales, scale);
  // A lane is a candidate: no sums over lanes. Four sums are under way, since each addition waits for the last.
  F16 error[4] = {zero(), zero(), zero(), zero()};
  for (int i = 0; i < GROUP; i += 4)
    for (int j = 0; j < 4; j++) {
      const F16 v = set1(x[i + j]) * inverse, d = v - nearest_code(v);
      error[j] = error[j] + d * d;
    }
  store(errors, scale * scale * ((error[0] + error[1]) + (error[2] + error[3])));
  // The first of the smallest errors, without branches, which nothing could predict.
  uint64_t best = UINT64_MAX;
  for (int k = 0; k < kCandidates; k++) {
    const uint64_t key = scales[k] == 0.0f ? UINT64_MAX : uint64_t{bits_of(errors[k])} << 8 | static_cast<uint64_t>(k);
    best = key < best ? key : best;
  }
  coding = best == UINT64_MAX ? 0.0f : scales[best & 0xff];
  if (coding == 0.0f) return 0.0f;
  const float stretched = orthogonal_scale<GROUP>(x, coding), ratio = stretched / coding;
  return ratio > 0.85f && ratio < 1.15f ? stretched : coding;
}

inline float search_scale(const float* x, int group, float peak, float& coding) {
  return group == 32   ? search_scale<32>(x, peak, coding)
         : group == 64 ? search_scale<64>(x, peak, coding)
                       : search_scale<128>(x, peak, coding);
}

// The value of largest magnitude; of several, the first.
inline float peak_of(const float* x, int group) {
  uint64_t largest = 0;
  for (int i = 0; i < group; i++) {
    const uint64_t key = uint64_t{bits_of(x[i]) & 0x7fffffffu} << 8 | static_cast<uint64_t>(255 - i);
    largest = key > largest ? key : largest;
  }
  return x[255 - (largest & 0xff)];
}

inline uint16_t pack_group(const float* x, int group, int bits, int8_t* codes) {
  const float peak = peak_of(x, group);
  float coding = rounded_to_half(__builtin_fabsf(peak) / 127.0f), scale = coding;
  if (bits == 4) scale = search_scale(x, group, peak, coding);
  const F16 lowest = set1(bits == 4 ? -8.0f : -127.0f), highest = set1(bits == 4 ? 7.0f : 127.0f);
  const F16 inverse = set1(coding != 0.0f ? 1.0f / coding : 0.0f);
  for (int i = 0; i < group; i += 16) store_int8(codes + i, max(min(round(load(x + i) * inverse), highest), lowest));
  return float_to_half(scale);
}

}  // namespace estream::ESTREAM_VARIANT
