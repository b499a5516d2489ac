// F16, the vector of sixteen floats that the float kernels use, as one AVX-512 register. The comments here hold for the other
// instruction sets too.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace estream::ESTREAM_VARIANT {

struct F16 {
  __m512 v;
};

// The largest outer product whose accumulators fit into the registers: kOuterScalars scalars times kOuterVectors vectors.
constexpr int kOuterScalars = 8, kOuterVectors = 2;

inline F16 zero() { return {_mm512_setzero_ps()}; }
inline F16 set1(float a) { return {_mm512_set1_ps(a)}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 abs(F16 a) { return {_mm512_abs_ps(a.v)}; }
inline F16 round(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

// a where x > y, else 0.
inline F16 keep_where_greater(F16 x, F16 y, F16 a) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_GT_OQ), a.v)};
}

// a * 2^n for integral n.
inline F16 scale_by_power(F16 a, F16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }

inline float reduce_max(F16 a) { return _mm512_reduce_max_ps(a.v); }

// The sum in one fixed order, the same in every variant: element i plus element i + 8, then i + 4, i + 2, i + 1.
inline float reduce_add(F16 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Rounds to nearest even and stores 16 signed bytes. Values must lie in [-127, 127].
inline void store_int8(int8_t* p, F16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

// Rounds to the nearest halves, ties to even; beyond the largest half, infinity.
inline void store_half(uint16_t* p, F16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F16 load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline F16 load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

// x > y ? a : b
inline F16 select_greater(F16 x, F16 y, F16 a, F16 b) {
  return {_mm512_mask_mov_ps(b.v, _mm512_cmp_ps_mask(x.v, y.v, _CMP_GT_OQ), a.v)};
}

// Sixteen pairs of bfloat16 as they lie in memory; then the first and the second of each pair.
inline F16 load_bf16_pairs(const void* p) { return {_mm512_castsi512_ps(_mm512_loadu_si512(p))}; }
inline F16 first_bf16(F16 a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 16))}; }
inline F16 second_bf16(F16 a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(-0x10000)))};
}

// Element j of row i becomes element i of row j.
inline void transpose(F16 (&r)[16]) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
    a[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  const auto low = [](__m512 x, __m512 y) { return _mm512_shuffle_ps(x, y, 0x44); };
  const auto high = [](__m512 x, __m512 y) { return _mm512_shuffle_ps(x, y, 0xee); };
  for (int i = 0; i < 16; i += 4) {
    b[i] = low(a[i], a[i + 2]);
    b[i + 1] = high(a[i], a[i + 2]);
    b[i + 2] = low(a[i + 1], a[i + 3]);
    b[i + 3] = high(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    const __m512 even = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88), odd = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
    const __m512 even8 = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88),
                 odd8 = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
    r[i].v = _mm512_shuffle_f32x4(even, even8, 0x88);
    r[i + 8].v = _mm512_shuffle_f32x4(even, even8, 0xdd);
    r[i + 4].v = _mm512_shuffle_f32x4(odd, odd8, 0x88);
    r[i + 12].v = _mm512_shuffle_f32x4(odd, odd8, 0xdd);
  }
}

// Stores bytes 4i..4i+3 from element i of a, b, c and d, which are integers in [0, 255].
inline void store_bytes(uint8_t* p, F16 a, F16 b, F16 c, F16 d) {
  const auto shifted = [](F16 x, unsigned bits) { return _mm512_slli_epi32(_mm512_cvtps_epi32(x.v), bits); };
  const __m512i low = _mm512_or_si512(_mm512_cvtps_epi32(a.v), shifted(b, 8));
  _mm512_storeu_si512(p, _mm512_or_si512(low, _mm512_or_si512(shifted(c, 16), shifted(d, 24))));
}

// Sixteen pairs of 16-bit integers, and sixteen 32-bit integers.
struct Pairs {
  __m512i v;
};
struct Sums {
  __m512i v = _mm512_setzero_si512();
};
// Rounds to nearest even. Values must fit into 16 bits.
inline Pairs pairs_of(F16 first, F16 second) {
  const __m512i high = _mm512_slli_epi32(_mm512_cvtps_epi32(second.v), 16);
  return {_mm512_mask_blend_epi16(0x55555555, high, _mm512_cvtps_epi32(first.v))};
}
inline Pairs load_pairs(const int16_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_pairs(int16_t* p, Pairs a) { _mm512_storeu_si512(p, a.v); }
// (a * b + 2^14) >> 15.
inline Pairs rounded_product(Pairs a, Pairs b) { return {_mm512_mulhrs_epi16(a.v, b.v)}; }
inline Pairs bounded(Pairs a, int16_t lowest, int16_t highest) {
  return {_mm512_max_epi16(_mm512_min_epi16(a.v, _mm512_set1_epi16(highest)), _mm512_set1_epi16(lowest))};
}
// Adds the products of both numbers of each pair.
inline Sums add_products(Sums sums, Pairs a, Pairs b) { return {_mm512_dpwssd_epi32(sums.v, a.v, b.v)}; }
inline F16 floats_of(Sums sums) { return {_mm512_cvtepi32_ps(sums.v)}; }

}  // namespace estream::ESTREAM_VARIANT
