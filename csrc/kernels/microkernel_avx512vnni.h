// The integer micro-kernel with AVX-512 VNNI: each 32-bit element adds four products of unsigned weights and signed
// activations.
#pragma once
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/row_pointers.h"
#include "kernels/simd_avx512.h"

namespace estream::ESTREAM_VARIANT {

// The 32 registers hold 12 integer and 12 float accumulators, two of each for six rows, and weights.
constexpr int kMicrokernelRows = 6;
// With unpacked weights the registers hold 14 integer accumulators and 14 float sums of seven rows.
constexpr int kBlockRows = 7;
constexpr int kGroupsAtOnce = 2;
// Up to this many rows, unpacking weights in registers for each block is faster than unpacking them to memory once.
constexpr int kPackedRows = 2 * kBlockRows;
constexpr int kMinBlockedRows = 1;
constexpr bool kSplitBytes = false;
// Floats near this one lie 1 apart, so adding an integer to its bits gives the bits of the float sum.
constexpr float kMagicFloat = 12582912.0f;  // 1.5 * 2^23

inline __m512i broadcast4(const int8_t* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return _mm512_set1_epi32(word);
}

// Adds four products of unsigned and signed bytes to each 32-bit element. Assembly, because GCC 12 copies the accumulator
// around each use of its own intrinsic, which halves the speed.
ESTREAM_INLINE void dot4(__m512i& acc, __m512i unsigned4, __m512i signed4) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(unsigned4), "v"(signed4));
}

template <int R, int BITS, int GROUP>
inline void microkernel(const uint8_t* panel, int groups, const RowPointers<R>& x, F16 (&sum)[R][2]) {
  constexpr int kStep = BITS == 4 ? 8 : 4;
  const __m512i low = _mm512_set1_epi8(15);
  for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = zero();
  for (int g = 0; g < groups; g++) {
    __m512i acc[R][2];
    for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = _mm512_set1_epi32(-(x.sums[r][g] << (BITS == 4 ? 3 : 7)));
    for (int k = 0; k < GROUP; k += kStep) {
      const uint8_t* bytes = panel + k / kStep * 128;
      const int column = g * GROUP + k;
      const __m512i w0 = _mm512_loadu_si512(bytes), w1 = _mm512_loadu_si512(bytes + 64);
      if constexpr (BITS == 4) {
        const __m512i low0 = _mm512_and_si512(w0, low), low1 = _mm512_and_si512(w1, low);
        const __m512i high0 = _mm512_and_si512(_mm512_srli_epi16(w0, 4), low);
        const __m512i high1 = _mm512_and_si512(_mm512_srli_epi16(w1, 4), low);
        for (int r = 0; r < R; r++) {
          const __m512i a = broadcast4(x.codes[r] + column), b = broadcast4(x.codes[r] + column + 4);
          dot4(acc[r][0], low0, a);
          dot4(acc[r][1], low1, a);
          dot4(acc[r][0], high0, b);
          dot4(acc[r][1], high1, b);
        }
      } else {
        for (int r = 0; r < R; r++) {
          const __m512i a = broadcast4(x.codes[r] + column);
          dot4(acc[r][0], w0, a);
          dot4(acc[r][1], w1, a);
        }
      }
    }
    panel += 4 * BITS * GROUP;
    const auto* scales = reinterpret_cast<const uint16_t*>(panel);
    const F16 s0 = load_half(scales), s1 = load_half(scales + 16);
    for (int r = 0; r < R; r++) {
      const F16 a = set1(x.scales[r][g]);
      sum[r][0] = fma(F16{_mm512_cvtepi32_ps(acc[r][0])} * s0, a, sum[r][0]);
      sum[r][1] = fma(F16{_mm512_cvtepi32_ps(acc[r][1])} * s1, a, sum[r][1]);
    }
    panel += 64;
  }
}

}  // namespace estream::ESTREAM_VARIANT
