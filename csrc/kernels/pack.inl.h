// Quantising one group of weights. Written without fused products, so that every variant makes the same package.
#pragma once
#include <cstring>
#include <initializer_list>

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

struct Fit {
  float error;  // weighted squared error
  float xq, qq;  // weighted sums of x * code and code * code
};

// How well codes = clamp(round(x / scale)) represent x, with weight |x| on each error.
inline Fit fit(const float* x, int group, float scale, float lowest, float highest) {
  F16 error = zero(), xq = zero(), qq = zero();
  const F16 s = set1(scale), inverse = set1(1.0f / scale);
  for (int i = 0; i < group; i += 16) {
    const F16 v = load(x + i), weight = abs(v);
    const F16 q = max(min(round(v * inverse), set1(highest)), set1(lowest));
    const F16 d = v - s * q;
    error = error + weight * (d * d);
    const F16 wq = weight * q;
    xq = xq + wq * v;
    qq = qq + wq * q;
  }
  return {sum_tree(error), sum_tree(xq), sum_tree(qq)};
}

// The scale of least weighted error among: peak / d for d = 6, 6.25 .. 9.5 and their negatives (a negative scale gives the
// peak the code -8), each also refined once by least squares for its own codes. Ties go to the earlier one.
inline float search_scale(const float* x, int group, float peak, float lowest, float highest) {
  float best = rounded_to_half(peak / lowest);
  float least = fit(x, group, best, lowest, highest).error;
  const auto consider = [&](float scale) {
    const float candidate = rounded_to_half(scale);
    if (candidate == 0.0f) return Fit{};
    const Fit f = fit(x, group, candidate, lowest, highest);
    if (f.error < least) {
      least = f.error;
      best = candidate;
    }
    return f;
  };
  for (int step = 24; step <= 38; step++)
    for (const float sign : {-1.0f, 1.0f}) {
      const Fit f = consider(sign * peak / (0.25f * static_cast<float>(step)));
      if (f.qq > 0.0f) consider(f.xq / f.qq);
    }
  return best;
}

inline uint16_t pack_group(const float* x, int group, int bits, int8_t* codes) {
  const float lowest = bits == 4 ? -8.0f : -127.0f, highest = bits == 4 ? 7.0f : 127.0f;
  float peak = 0.0f;
  for (int i = 0; i < group; i++) peak = __builtin_fabsf(x[i]) > __builtin_fabsf(peak) ? x[i] : peak;
  float best = rounded_to_half(__builtin_fabsf(peak) / highest);
  if (bits == 4 && best != 0.0f) best = search_scale(x, group, peak, lowest, highest);
  const F16 inverse = set1(best != 0.0f ? 1.0f / best : 0.0f);
  for (int i = 0; i < group; i += 16)
    store_int8(codes + i, max(min(round(load(x + i) * inverse), set1(highest)), set1(lowest)));
  return float_to_half(best);
}

}  // namespace estream::ESTREAM_VARIANT
