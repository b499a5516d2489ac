// Rows times unpacked groups of weights, with AVX-512 VNNI.
#pragma once
#include <utility>

#include "kernels/microkernel_avx512vnni.h"
// After the micro-kernel, whose constants it needs.
#include "kernels/blocked.inl.h"

namespace estream::ESTREAM_VARIANT {

// The instruction itself broadcasts the word of activations.
ESTREAM_INLINE void dot4_word(__m512i& acc, __m512i unsigned4, const int8_t* word) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(unsigned4), "m"(*reinterpret_cast<const int32_t*>(word)));
}

ESTREAM_INLINE void multiply_row(__m512i (&acc)[2], const int8_t* word, __m512i w0, __m512i w1) {
  dot4_word(acc[0], w0, word);
  dot4_word(acc[1], w1, word);
}

// An integer accumulator holds the bits of the float kMagicFloat + product. So one fused multiply-add replaces a conversion and
// a multiplication, with the same rounding.
template <int BITS, int GROUP>
ESTREAM_INLINE void scale_row(const __m512i (&acc)[2], const GroupWeights<BITS, GROUP>& w, float row_scale, F16 (&sum)[2]) {
  const F16 a = set1(row_scale);
  for (int half = 0; half < 2; half++)
    sum[half] = fma(fma({_mm512_castsi512_ps(acc[half])}, w.scales[half], w.corrections[half]), a, sum[half]);
}

// The words of eight inputs times weights that are unpacked in registers.
template <int R, int BITS, size_t... ROW>
ESTREAM_INLINE void multiply_packed_step(__m512i (&acc)[R][2], const uint8_t* packed, const int8_t* words,
                                         std::index_sequence<ROW...>) {
  const __m512i low = _mm512_set1_epi8(15), p0 = _mm512_loadu_si512(packed), p1 = _mm512_loadu_si512(packed + 64);
  if constexpr (BITS == 4) {
    const __m512i first0 = _mm512_and_si512(p0, low), first1 = _mm512_and_si512(p1, low);
    const __m512i second0 = _mm512_and_si512(_mm512_srli_epi16(p0, 4), low);
    const __m512i second1 = _mm512_and_si512(_mm512_srli_epi16(p1, 4), low);
    (multiply_row(acc[ROW], words + 4 * ROW, first0, first1), ...);
    (multiply_row(acc[ROW], words + 4 * (kBlockRows + ROW), second0, second1), ...);
  } else {
    (multiply_row(acc[ROW], words + 4 * ROW, p0, p1), ...);
    const __m512i p2 = _mm512_loadu_si512(packed + 128), p3 = _mm512_loadu_si512(packed + 192);
    (multiply_row(acc[ROW], words + 4 * (kBlockRows + ROW), p2, p3), ...);
  }
}

// All groups of a panel times the rows of one block. The sums stay in registers.
template <int R, int BITS, int GROUP>
inline void multiply_packed(const PackedMatrix& w, int panel, const InterleavedRows& x, int row_block, float* sums) {
  const uint8_t* block = w.data + panel * w.panel_bytes();
  [&]<size_t... ROW>(std::index_sequence<ROW...> rows) __attribute__((always_inline)) {
    F16 sum[R][2];
    ((sum[ROW][0] = sum[ROW][1] = zero()), ...);
    for (int g = 0; g < w.groups(); g++, block += w.block_bytes()) {
      prefetch_block(w, block);
      const RowBlock part = rows_at<GROUP>(x, group_index(g, w.groups(), row_block, x.blocks));
      __m512i acc[R][2];
      ((acc[ROW][0] = acc[ROW][1] = _mm512_set1_epi32(part.initial_sums[ROW])), ...);
#pragma GCC unroll 4
      for (int k = 0; k < GROUP; k += 8)
        multiply_packed_step<R, BITS>(acc, block + k * 4 * BITS, part.codes + k * kBlockRows, rows);
      GroupWeights<BITS, GROUP> scales;
      load_scales(reinterpret_cast<const uint16_t*>(block + 4 * BITS * GROUP), scales);
      (scale_row(acc[ROW], scales, part.scales[ROW], sum[ROW]), ...);
    }
    ((store(sums + ROW * kPanel, sum[ROW][0]), store(sums + ROW * kPanel + 16, sum[ROW][1])), ...);
  }(std::make_index_sequence<R>{});
}

// Parameter packs replace loops over rows, because GCC 12 keeps the accumulators in memory otherwise.
template <int R, int N, int BITS, int GROUP>
ESTREAM_INLINE void multiply_rows(const GroupWeights<BITS, GROUP>* w, RowBlock x, float* sums) {
  [&]<size_t... ROW>(std::index_sequence<ROW...>) __attribute__((always_inline)) {
    F16 sum[R][2];
    ((sum[ROW][0] = load(sums + ROW * kPanel), sum[ROW][1] = load(sums + ROW * kPanel + 16)), ...);
#pragma GCC unroll 2
    for (int n = 0; n < N; n++, w++, x = x.after<GROUP>(1)) {
      __m512i acc[R][2];
      ((acc[ROW][0] = acc[ROW][1] = _mm512_set1_epi32(x.initial_sums[ROW])), ...);
      const uint8_t* codes = w->codes;
      const int8_t* words = x.codes;
#pragma GCC unroll 8
      for (int k = 0; k < GROUP; k += 4, words += 4 * kBlockRows, codes += 4 * kPanel) {
        const __m512i w0 = _mm512_loadu_si512(codes), w1 = _mm512_loadu_si512(codes + 64);
        (multiply_row(acc[ROW], words + 4 * ROW, w0, w1), ...);
      }
      (scale_row(acc[ROW], *w, x.scales[ROW], sum[ROW]), ...);
    }
    ((store(sums + ROW * kPanel, sum[ROW][0]), store(sums + ROW * kPanel + 16, sum[ROW][1])), ...);
  }(std::make_index_sequence<R>{});
}

}  // namespace estream::ESTREAM_VARIANT
