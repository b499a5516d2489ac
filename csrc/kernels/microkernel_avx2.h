// The integer micro-kernel with AVX2, or with AVX-VNNI's 256-bit dot product where the compiler may use it.
#pragma once
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/row_pointers.h"
#include "kernels/simd_avx2.h"

namespace estream::ESTREAM_VARIANT {

constexpr int kMicrokernelRows = 2;
// With unpacked weights the 16 registers hold the 12 accumulators of three rows.
constexpr int kBlockRows = 3;
constexpr int kGroupsAtOnce = 1;
constexpr int kPackedRows = 0;
constexpr float kMagicFloat = 0.0f;

inline __m256i broadcast4(const int8_t* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return _mm256_set1_epi32(word);
}

#if defined(__AVXVNNI__)
constexpr bool kSplitBytes = false;
constexpr int kMinBlockedRows = kBlockRows;

// acc += dot product of four unsigned bytes of w and four signed bytes of a. Assembly, because GCC 12 copies the accumulator
// around each use of its own intrinsic.
ESTREAM_INLINE void dot4_vnni(__m256i& acc, __m256i w, __m256i a) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(a));
}
#else
// AVX2 adds pairs of products in 16 bits, which products of whole bytes would overflow.
constexpr bool kSplitBytes = true;
// For fewer rows splitting the bytes costs more than it saves.
constexpr int kMinBlockedRows = 8;
#endif

// acc += dot product of four unsigned bytes of w, at most LARGEST, and four signed bytes of a. Exact.
template <int LARGEST>
inline __m256i dot4(__m256i acc, __m256i w, __m256i a) {
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(acc, w, a);
#else
  if constexpr (LARGEST <= 15) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), _mm256_set1_epi16(1)));
  } else {
    // Pairs of products of whole bytes would saturate 16 bits, so even and odd bytes are widened first.
    const __m256i even_w = _mm256_and_si256(w, _mm256_set1_epi16(255)), odd_w = _mm256_srli_epi16(w, 8);
    const __m256i even_a = _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8), odd_a = _mm256_srai_epi16(a, 8);
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(even_w, even_a));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(odd_w, odd_a));
  }
#endif
}

template <int R, int BITS, int GROUP>
inline void microkernel(const uint8_t* panel, int groups, const RowPointers<R>& x, F16 (&sum)[R][2]) {
  constexpr int kStep = BITS == 4 ? 8 : 4;
  const __m256i low = _mm256_set1_epi8(15);
  for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = zero();
  for (int g = 0; g < groups; g++) {
    __m256i acc[R][4];
    for (int r = 0; r < R; r++)
      for (int v = 0; v < 4; v++) acc[r][v] = _mm256_set1_epi32(-(x.sums[r][g] * (BITS == 4 ? 8 : 128)));
    for (int k = 0; k < GROUP; k += kStep) {
      const uint8_t* bytes = panel + k / kStep * 128;
      const int column = g * GROUP + k;
      for (int v = 0; v < 4; v++) {
        const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 32 * v));
        if constexpr (BITS == 4) {
          const __m256i first = _mm256_and_si256(w, low), second = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
          for (int r = 0; r < R; r++) {
            acc[r][v] = dot4<15>(acc[r][v], first, broadcast4(x.codes[r] + column));
            acc[r][v] = dot4<15>(acc[r][v], second, broadcast4(x.codes[r] + column + 4));
          }
        } else {
          for (int r = 0; r < R; r++) acc[r][v] = dot4<255>(acc[r][v], w, broadcast4(x.codes[r] + column));
        }
      }
    }
    panel += 4 * BITS * GROUP;
    const auto* scales = reinterpret_cast<const uint16_t*>(panel);
    for (int half = 0; half < 2; half++) {
      const F16 w = load_half(scales + 16 * half);
      for (int r = 0; r < R; r++) {
        const F16 product = {_mm256_cvtepi32_ps(acc[r][2 * half]), _mm256_cvtepi32_ps(acc[r][2 * half + 1])};
        sum[r][half] = fma(product * w, set1(x.scales[r][g]), sum[r][half]);
      }
    }
    panel += 64;
  }
}

}  // namespace estream::ESTREAM_VARIANT
