// Quantising one group of weights. Written without fused products, so that every variant makes the same package.
#pragma once
#include <cstring>

#include "float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

// Rounds to the nearest half, ties to even; beyond the largest half, infinity.
inline uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // A subnormal half counts units of 2^-24, which adding 0.5 leaves in the lowest bits of the mantissa.
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5f;
    std::memcpy(&bits, &shifted, sizeof bits);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float rounded_to_half(float value) {
  uint16_t halves[16] = {float_to_half(value)};
  float floats[16];
  store(floats, load_half(halves));
  return floats[0];
}

constexpr int kCandidates = 16;

struct Fit {
  float error;   // sum of (x - scale * code)^2
  float xx, xq;  // sums of x^2 and x * code
};

// How well codes = clamp(round(x / scale)) represent x.
inline Fit fit(const float* x, int group, float scale) {
  F16 error = zero(), xx = zero(), xq = zero();
  const F16 s = set1(scale), inverse = set1(1.0f / scale);
  for (int i = 0; i < group; i += 16) {
    const F16 v = load(x + i);
    const F16 q = max(min(round(v * inverse), set1(7.0f)), set1(-8.0f));
    const F16 d = v - s * q;
    error = error + d * d;
    xx = xx + v * v;
    xq = xq + v * q;
  }
  return {sum_tree(error), sum_tree(xx), sum_tree(xq)};
}

// The scale of a 4-bit group. Of sixteen scales around -peak / 8, which give the largest weight about the code -8, the one
// of least squared error is taken; then it is stretched so that the error is orthogonal to the weights, because the least
// squared error shrinks every output a little. Why so, measured: docs/experiments.md. Sets `coding` to the scale by which
// the codes are chosen and returns the one by which they are multiplied.
inline float search_scale(const float* x, int group, float peak, float& coding) {
  const float lowest = group == 32 ? 7.0f : group == 64 ? 7.25f : 7.5f;
  const float highest = group == 32 ? 9.0f : group == 64 ? 9.5f : 10.0f;
  Fit best{};
  coding = 0.0f;
  for (int k = 0; k < kCandidates; k++) {
    const float divisor = lowest + static_cast<float>(k) * (highest - lowest) / static_cast<float>(kCandidates - 1);
    const float scale = rounded_to_half(-peak / divisor);
    if (scale == 0.0f) continue;
    const Fit f = fit(x, group, scale);
    if (coding != 0.0f && f.error >= best.error) continue;
    best = f;
    coding = scale;
  }
  const float stretched = best.xq != 0.0f ? rounded_to_half(best.xx / best.xq) : 0.0f;
  const float ratio = coding != 0.0f ? stretched / coding : 0.0f;
  return ratio > 0.85f && ratio < 1.15f ? stretched : coding;
}

inline uint16_t pack_group(const float* x, int group, int bits, int8_t* codes) {
  float peak = 0.0f;
  for (int i = 0; i < group; i++) peak = __builtin_fabsf(x[i]) > __builtin_fabsf(peak) ? x[i] : peak;
  float coding = rounded_to_half(__builtin_fabsf(peak) / 127.0f), scale = coding;
  if (bits == 4) scale = search_scale(x, group, peak, coding);
  const F16 lowest = set1(bits == 4 ? -8.0f : -127.0f), highest = set1(bits == 4 ? 7.0f : 127.0f);
  const F16 inverse = set1(coding != 0.0f ? 1.0f / coding : 0.0f);
  for (int i = 0; i < group; i += 16) store_int8(codes + i, max(min(round(load(x + i) * inverse), highest), lowest));
  return float_to_half(scale);
}

}  // namespace estream::ESTREAM_VARIANT
