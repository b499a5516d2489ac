// Quantises four groups of 64 at a time. One vector then holds what is computed from the absmax of each.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace estream::ESTREAM_VARIANT {

// Element i of the result is the reduction of r[i] by `both`.
template <typename Both>
inline __m128i reduce_four(const __m512i (&r)[4], Both both) {
  const auto join = [&](__m512i a, __m512i b) { return both(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)); };
  const __m512i low = join(r[0], r[1]), high = join(r[2], r[3]);
  const __m512i all = both(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
  const __m512i half = both(all, _mm512_shuffle_i64x2(all, all, 0x4e));
  return _mm512_castsi512_si128(both(half, _mm512_shuffle_i64x2(half, half, 0xb1)));
}

// Does what quantize_group does, for four groups. Returns false, having written nothing, where an absmax is not finite or so
// small or large that codes would need clamping.
inline bool quantize_four_groups(const float* x, int8_t* codes, float* scales, int32_t* sums_of_codes) {
  // Floats without a sign are ordered like the integers of the same bits, and NaN lies above all numbers.
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i reduced[4];
  for (int g = 0; g < 4; g++) {
    const auto bits = [&](int i) { return _mm512_and_si512(magnitude, _mm512_loadu_si512(x + 64 * g + 16 * i)); };
    reduced[g] = _mm512_max_epi32(_mm512_max_epi32(bits(0), bits(1)), _mm512_max_epi32(bits(2), bits(3)));
  }
  const __m128i absmax_bits = reduce_four(reduced, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); });
  const __m128 absmax = _mm_castsi128_ps(absmax_bits);
  const __m128i least = _mm_castps_si128(_mm_set1_ps(1e-30f)), most = _mm_castps_si128(_mm_set1_ps(1e30f));
  const __m128i positive = _mm_cmpgt_epi32(absmax_bits, _mm_setzero_si128());
  const __m128i small = _mm_and_si128(positive, _mm_cmpgt_epi32(least, absmax_bits));
  if (_mm_movemask_epi8(_mm_or_si128(small, _mm_cmpgt_epi32(absmax_bits, most)))) return false;
  alignas(16) float inverse[4];
  _mm_store_ps(inverse, _mm_and_ps(_mm_castsi128_ps(positive), _mm_div_ps(_mm_set1_ps(127.0f), absmax)));
  // The pack instructions work within 128-bit parts; the permutation restores the order.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int g = 0; g < 4; g++) {
    const __m512 factor = _mm512_set1_ps(inverse[g]);
    const auto code = [&](int i) { return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 64 * g + 16 * i), factor)); };
    const __m512i low = _mm512_packs_epi32(code(0), code(1)), high = _mm512_packs_epi32(code(2), code(3));
    const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
    _mm512_storeu_si512(codes + 64 * g, bytes);
    reduced[g] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
  }
  const __m128i sums = reduce_four(reduced, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); });
  _mm_storeu_ps(scales, _mm_div_ps(absmax, _mm_set1_ps(127.0f)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sums_of_codes), sums);
  return true;
}

}  // namespace estream::ESTREAM_VARIANT
