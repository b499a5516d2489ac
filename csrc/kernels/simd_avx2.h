// F16 as two AVX2 registers (simd_avx512.h).
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace estream::ESTREAM_VARIANT {

struct F16 {
  __m256 a, b;
};

// The largest outer product whose accumulators fit into the registers: kOuterScalars scalars times kOuterVectors vectors.
constexpr int kOuterScalars = 6, kOuterVectors = 1;

inline F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F16 fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F16 abs(F16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F16 round(F16 x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
inline F16 keep_where_greater(F16 x, F16 y, F16 z) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), z.a), _mm256_and_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ), z.b)};
}
inline F16 scale_by_power(F16 x, F16 n) {
  const __m256i bias = _mm256_set1_epi32(127);
  const auto power = [&](__m256 e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(e), bias), 23));
  };
  return {_mm256_mul_ps(x.a, power(n.a)), _mm256_mul_ps(x.b, power(n.b))};
}
inline float reduce_max(F16 x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_add(F16 x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline void store_int8(int8_t* p, F16 x) {
  const __m256i qa = _mm256_cvtps_epi32(x.a), qb = _mm256_cvtps_epi32(x.b);
  // The pack instructions work within 128-bit halves; the permutation restores the order.
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(qa, qb), 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
inline void store_half(uint16_t* p, F16 x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, mode));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, mode));
}
inline F16 load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline F16 load_bf16(const uint16_t* p) {
  const auto widen = [](const uint16_t* q) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  };
  return {widen(p), widen(p + 8)};
}

inline F16 select_greater(F16 x, F16 y, F16 a, F16 b) {
  return {_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)),
          _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))};
}
inline F16 load_bf16_pairs(const void* p) {
  const auto at = [&](int i) { return _mm256_castsi256_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p) + i)); };
  return {at(0), at(1)};
}
inline F16 first_bf16(F16 x) {
  const auto first = [](__m256 v) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 16)); };
  return {first(x.a), first(x.b)};
}
inline F16 second_bf16(F16 x) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(-0x10000));
  return {_mm256_and_ps(x.a, mask), _mm256_and_ps(x.b, mask)};
}
inline void transpose_eight(__m256 (&r)[8]) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
    }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}
inline void transpose(F16 (&r)[16]) {
  __m256 corner[4][8];
  for (int i = 0; i < 8; i++) {
    corner[0][i] = r[i].a;
    corner[1][i] = r[i].b;
    corner[2][i] = r[i + 8].a;
    corner[3][i] = r[i + 8].b;
  }
  for (auto& c : corner) transpose_eight(c);
  for (int i = 0; i < 8; i++) {
    r[i] = {corner[0][i], corner[2][i]};
    r[i + 8] = {corner[1][i], corner[3][i]};
  }
}
inline void store_bytes(uint8_t* p, F16 a, F16 b, F16 c, F16 d) {
  const auto joined = [](__m256 x, __m256 y, __m256 z, __m256 w) {
    const auto shifted = [](__m256 v, int bits) { return _mm256_slli_epi32(_mm256_cvtps_epi32(v), bits); };
    const __m256i low = _mm256_or_si256(_mm256_cvtps_epi32(x), shifted(y, 8));
    return _mm256_or_si256(low, _mm256_or_si256(shifted(z, 16), shifted(w, 24)));
  };
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), joined(a.a, b.a, c.a, d.a));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), joined(a.b, b.b, c.b, d.b));
}

struct Pairs {
  __m256i a, b;
};
struct Sums {
  __m256i a = _mm256_setzero_si256(), b = _mm256_setzero_si256();
};
inline Pairs pairs_of(F16 first, F16 second) {
  const auto joined = [](__m256 x, __m256 y) {
    return _mm256_blend_epi16(_mm256_cvtps_epi32(x), _mm256_slli_epi32(_mm256_cvtps_epi32(y), 16), 0xaa);
  };
  return {joined(first.a, second.a), joined(first.b, second.b)};
}
inline Pairs load_pairs(const int16_t* p) {
  const auto* at = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
inline void store_pairs(int16_t* p, Pairs x) {
  auto* at = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(at, x.a);
  _mm256_storeu_si256(at + 1, x.b);
}
inline Pairs rounded_product(Pairs x, Pairs y) { return {_mm256_mulhrs_epi16(x.a, y.a), _mm256_mulhrs_epi16(x.b, y.b)}; }
inline Pairs bounded(Pairs x, int16_t lowest, int16_t highest) {
  const __m256i low = _mm256_set1_epi16(lowest), high = _mm256_set1_epi16(highest);
  return {_mm256_max_epi16(_mm256_min_epi16(x.a, high), low), _mm256_max_epi16(_mm256_min_epi16(x.b, high), low)};
}
inline Sums add_products(Sums sums, Pairs x, Pairs y) {
  return {_mm256_add_epi32(sums.a, _mm256_madd_epi16(x.a, y.a)), _mm256_add_epi32(sums.b, _mm256_madd_epi16(x.b, y.b))};
}
inline F16 floats_of(Sums sums) { return {_mm256_cvtepi32_ps(sums.a), _mm256_cvtepi32_ps(sums.b)}; }

}  // namespace estream::ESTREAM_VARIANT
