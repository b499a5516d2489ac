// Rows times one unpacked group of weights, with AVX2, or with AVX-VNNI where the compiler may use it.
#pragma once
#include <utility>

#include "kernels/microkernel_avx2.h"
// After the micro-kernel, whose constants it needs.
#include "kernels/blocked.inl.h"

namespace estream::ESTREAM_VARIANT {

ESTREAM_INLINE __m256i weights_at(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

ESTREAM_INLINE void scale_row(const __m256i (&acc)[4], const F16 (&scales)[2], float row_scale, float* sums) {
  const F16 a = set1(row_scale);
  for (int half = 0; half < 2; half++) {
    const F16 product = {_mm256_cvtepi32_ps(acc[2 * half]), _mm256_cvtepi32_ps(acc[2 * half + 1])};
    store(sums + 16 * half, fma(product * scales[half], a, load(sums + 16 * half)));
  }
}

// Parameter packs replace loops over rows, because GCC 12 keeps the accumulators in memory otherwise.
#if defined(__AVXVNNI__)

template <int R, int N, int BITS, int GROUP>
ESTREAM_INLINE void multiply_rows(const GroupWeights<BITS, GROUP>* groups, const RowBlock& x, float* sums) {
  static_assert(N == 1);
  const GroupWeights<BITS, GROUP>& w = *groups;
  [&]<size_t... ROW>(std::index_sequence<ROW...>) __attribute__((always_inline)) {
    __m256i acc[R][4];
    ((acc[ROW][0] = acc[ROW][1] = acc[ROW][2] = acc[ROW][3] = _mm256_set1_epi32(x.initial_sums[ROW])), ...);
    const int8_t* words = x.codes;
    for (int k = 0; k < GROUP; k += 4, words += 4 * kBlockRows) {
      const __m256i a[R] = {broadcast4(words + 4 * ROW)...};
      for (int v = 0; v < 4; v++) {
        const __m256i weights = weights_at(w.codes + k * kPanel + 32 * v);
        (dot4_vnni(acc[ROW][v], weights, a[ROW]), ...);
      }
    }
    (scale_row(acc[ROW], w.scales, x.scales[ROW], sums + ROW * kPanel), ...);
  }(std::make_index_sequence<R>{});
}

#else

// Adds pairs of products in 16 bits. A pair is at most 2 * 15 * 127, so the sum of eight pairs fits.
ESTREAM_INLINE void multiply_row(__m256i (&acc)[4], const int8_t* word, const uint8_t* weights) {
  const __m256i a = broadcast4(word);
  acc[0] = _mm256_add_epi16(acc[0], _mm256_maddubs_epi16(weights_at(weights), a));
  acc[1] = _mm256_add_epi16(acc[1], _mm256_maddubs_epi16(weights_at(weights + 32), a));
  acc[2] = _mm256_add_epi16(acc[2], _mm256_maddubs_epi16(weights_at(weights + 64), a));
  acc[3] = _mm256_add_epi16(acc[3], _mm256_maddubs_epi16(weights_at(weights + 96), a));
}

// total += FACTOR * the sums of pairs.
template <int FACTOR>
ESTREAM_INLINE void widen_row(const __m256i (&acc)[4], __m256i* total) {
  for (int v = 0; v < 4; v++) total[v] = _mm256_add_epi32(total[v], _mm256_madd_epi16(acc[v], _mm256_set1_epi16(FACTOR)));
}

// 32 inputs of one plane of weights. `weights` and `words` point to the first of them.
template <int R, int FACTOR>
ESTREAM_INLINE void multiply_step(const uint8_t* weights, const int8_t* words, __m256i (&total)[R][4]) {
  [&]<size_t... ROW>(std::index_sequence<ROW...>) __attribute__((always_inline)) {
    __m256i acc[R][4];
    const __m256i none = _mm256_setzero_si256();
    ((acc[ROW][0] = none, acc[ROW][1] = none, acc[ROW][2] = none, acc[ROW][3] = none), ...);
    for (int k = 0; k < 32; k += 4) (multiply_row(acc[ROW], words + k * kBlockRows + 4 * ROW, weights + k * kPanel), ...);
    (widen_row<FACTOR>(acc[ROW], total[ROW]), ...);
  }(std::make_index_sequence<R>{});
}

template <int R, int N, int BITS, int GROUP>
ESTREAM_INLINE void multiply_rows(const GroupWeights<BITS, GROUP>* groups, const RowBlock& x, float* sums) {
  static_assert(N == 1);
  const GroupWeights<BITS, GROUP>& w = *groups;
  __m256i total[R][4];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 4; v++) total[r][v] = _mm256_set1_epi32(x.initial_sums[r]);
  for (int k = 0; k < GROUP; k += 32) {
    const int8_t* words = x.codes + k * kBlockRows;
    multiply_step<R, 1>(w.codes + k * kPanel, words, total);
    if constexpr (GroupWeights<BITS, GROUP>::kPlanes == 2) multiply_step<R, 16>(w.codes + (GROUP + k) * kPanel, words, total);
  }
  for (int r = 0; r < R; r++) scale_row(total[r], w.scales, x.scales[r], sums + r * kPanel);
}

#endif

}  // namespace estream::ESTREAM_VARIANT
