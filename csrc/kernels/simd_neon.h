// Sixteen floats as four NEON registers.
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace estream::ESTREAM_VARIANT {

struct F16 {
  float32x4_t v[4];
};

// Accumulators of an outer product that fit into registers: so many scalars times so many vectors.
constexpr int kOuterScalars = 6, kOuterVectors = 1;

template <typename Function>
inline F16 each(Function function) {
  return {{function(0), function(1), function(2), function(3)}};
}

inline F16 set1(float x) {
  return each([&](int) { return vdupq_n_f32(x); });
}
inline F16 zero() { return set1(0.0f); }
inline F16 load(const float* p) {
  return each([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, F16 x) {
  for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.v[i]);
}
inline F16 operator+(F16 x, F16 y) {
  return each([&](int i) { return vaddq_f32(x.v[i], y.v[i]); });
}
inline F16 operator-(F16 x, F16 y) {
  return each([&](int i) { return vsubq_f32(x.v[i], y.v[i]); });
}
inline F16 operator*(F16 x, F16 y) {
  return each([&](int i) { return vmulq_f32(x.v[i], y.v[i]); });
}
inline F16 operator/(F16 x, F16 y) {
  return each([&](int i) { return vdivq_f32(x.v[i], y.v[i]); });
}
inline F16 fma(F16 x, F16 y, F16 z) {
  return each([&](int i) { return vfmaq_f32(z.v[i], x.v[i], y.v[i]); });
}
// Not vmaxq and vminq: where one is no number, all variants take the second.
inline F16 max(F16 x, F16 y) {
  return each([&](int i) { return vbslq_f32(vcgtq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]); });
}
inline F16 min(F16 x, F16 y) {
  return each([&](int i) { return vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]); });
}
inline F16 abs(F16 x) {
  return each([&](int i) { return vabsq_f32(x.v[i]); });
}
inline F16 round(F16 x) {
  return each([&](int i) { return vrndnq_f32(x.v[i]); });
}
inline F16 keep_where_greater(F16 x, F16 y, F16 z) {
  return each(
      [&](int i) { return vreinterpretq_f32_u32(vandq_u32(vcgtq_f32(x.v[i], y.v[i]), vreinterpretq_u32_f32(z.v[i]))); });
}
inline F16 scale_by_power(F16 x, F16 n) {
  return each([&](int i) {
    const int32x4_t bits = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23);
    return vmulq_f32(x.v[i], vreinterpretq_f32_s32(bits));
  });
}
inline float largest_lane(F16 x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[2]), vmaxq_f32(x.v[1], x.v[3]))); }
inline float sum_tree(F16 x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline void store_int8(int8_t* p, F16 x) {
  const auto words = [&](int i) {
    return vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(x.v[i])), vqmovn_s32(vcvtnq_s32_f32(x.v[i + 1])));
  };
  vst1q_s8(p, vcombine_s8(vqmovn_s16(words(0)), vqmovn_s16(words(2))));
}
inline void store_half(uint16_t* p, F16 x) {
  for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
inline F16 load_half(const uint16_t* p) {
  return each([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline F16 load_bf16(const uint16_t* p) {
  return each([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}

}  // namespace estream::ESTREAM_VARIANT
