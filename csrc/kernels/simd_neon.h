// F16 as four NEON registers (simd_avx512.h).
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace estream::ESTREAM_VARIANT {

struct F16 {
  float32x4_t v[4];
};

// The largest outer product whose accumulators fit into the registers: kOuterScalars scalars times kOuterVectors vectors.
constexpr int kOuterScalars = 4, kOuterVectors = 1;

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
// Not vmaxq and vminq: with a NaN, all variants must take the second operand.
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
inline float reduce_max(F16 x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[2]), vmaxq_f32(x.v[1], x.v[3]))); }
inline float reduce_add(F16 x) {
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

inline F16 select_greater(F16 x, F16 y, F16 a, F16 b) {
  return each([&](int i) { return vbslq_f32(vcgtq_f32(x.v[i], y.v[i]), a.v[i], b.v[i]); });
}
inline F16 load_bf16_pairs(const void* p) {
  return each([&](int i) { return vreinterpretq_f32_u32(vld1q_u32(static_cast<const uint32_t*>(p) + 4 * i)); });
}
inline F16 first_bf16(F16 x) {
  return each([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(x.v[i]), 16)); });
}
inline F16 second_bf16(F16 x) {
  return each([&](int i) { return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x.v[i]), vdupq_n_u32(0xffff0000u))); });
}

// Four rows of four: element j of row i becomes element i of row j.
inline void transpose_four(float32x4_t (&r)[4]) {
  const float32x4x2_t low = vtrnq_f32(r[0], r[1]), high = vtrnq_f32(r[2], r[3]);
  for (int i = 0; i < 2; i++) {
    r[i] = vcombine_f32(vget_low_f32(low.val[i]), vget_low_f32(high.val[i]));
    r[i + 2] = vcombine_f32(vget_high_f32(low.val[i]), vget_high_f32(high.val[i]));
  }
}
inline void transpose(F16 (&r)[16]) {
  F16 result[16];
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) {
      float32x4_t block[4] = {r[4 * i].v[j], r[4 * i + 1].v[j], r[4 * i + 2].v[j], r[4 * i + 3].v[j]};
      transpose_four(block);
      for (int k = 0; k < 4; k++) result[4 * j + k].v[i] = block[k];
    }
  for (int i = 0; i < 16; i++) r[i] = result[i];
}
inline void store_bytes(uint8_t* p, F16 a, F16 b, F16 c, F16 d) {
  for (int i = 0; i < 4; i++) {
    const auto word = [&](F16 x) { return vreinterpretq_u32_s32(vcvtnq_s32_f32(x.v[i])); };
    const uint32x4_t low = vorrq_u32(word(a), vshlq_n_u32(word(b), 8));
    vst1q_u8(p + 16 * i, vreinterpretq_u8_u32(vorrq_u32(low, vorrq_u32(vshlq_n_u32(word(c), 16), vshlq_n_u32(word(d), 24)))));
  }
}

struct Pairs {
  int16x8_t v[4];
};
struct Sums {
  int32x4_t v[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
};
inline Pairs pairs_of(F16 first, F16 second) {
  Pairs r;
  for (int i = 0; i < 4; i++) {
    const int16x4x2_t both = vzip_s16(vmovn_s32(vcvtnq_s32_f32(first.v[i])), vmovn_s32(vcvtnq_s32_f32(second.v[i])));
    r.v[i] = vcombine_s16(both.val[0], both.val[1]);
  }
  return r;
}
inline Pairs load_pairs(const int16_t* p) { return {{vld1q_s16(p), vld1q_s16(p + 8), vld1q_s16(p + 16), vld1q_s16(p + 24)}}; }
inline void store_pairs(int16_t* p, Pairs x) {
  for (int i = 0; i < 4; i++) vst1q_s16(p + 8 * i, x.v[i]);
}
inline Pairs rounded_product(Pairs x, Pairs y) {
  for (int i = 0; i < 4; i++) x.v[i] = vqrdmulhq_s16(x.v[i], y.v[i]);
  return x;
}
inline Pairs bounded(Pairs x, int16_t lowest, int16_t highest) {
  for (int16x8_t& v : x.v) v = vmaxq_s16(vminq_s16(v, vdupq_n_s16(highest)), vdupq_n_s16(lowest));
  return x;
}
inline Sums add_products(Sums sums, Pairs x, Pairs y) {
  for (int i = 0; i < 4; i++) {
    const int32x4_t low = vmull_s16(vget_low_s16(x.v[i]), vget_low_s16(y.v[i])), high = vmull_high_s16(x.v[i], y.v[i]);
    sums.v[i] = vaddq_s32(sums.v[i], vpaddq_s32(low, high));
  }
  return sums;
}
inline F16 floats_of(Sums sums) {
  return each([&](int i) { return vcvtq_f32_s32(sums.v[i]); });
}

}  // namespace estream::ESTREAM_VARIANT
