// Rows times one unpacked group of weights with AVX-512 VNNI.
#pragma once
#include <utility>

#include "tile_avx512vnni.h"
// Over this tile.
#include "blocked.inl.h"

namespace estream::ESTREAM_VARIANT {

template <size_t ROW, int GROUP>
ESTREAM_INLINE void multiply_row(__m512i (&acc)[2], const uint8_t* codes, __m512i w0, __m512i w1) {
  const __m512i a = broadcast4(reinterpret_cast<const int8_t*>(codes) + 64 * ROW);
  dot4(acc[0], a, w0);
  dot4(acc[1], a, w1);
}

ESTREAM_INLINE void scale_row(const __m512i (&acc)[2], const F16 (&scales)[2], float row_scale, float* sums) {
  const F16 a = set1(row_scale);
  store(sums, fma({_mm512_cvtepi32_ps(acc[0])}, scales[0] * a, load(sums)));
  store(sums + 16, fma({_mm512_cvtepi32_ps(acc[1])}, scales[1] * a, load(sums + 16)));
}

// Packs instead of loops over rows: GCC 12 leaves the accumulators in memory otherwise.
template <int R, int BITS, int GROUP>
ESTREAM_INLINE void multiply_rows(const GroupWeights<BITS, GROUP>& w, const UnsignedRows& x, float* sums) {
  [&]<size_t... ROW>(std::index_sequence<ROW...>) __attribute__((always_inline)) {
    __m512i acc[R][2];
    const __m512i first[2] = {_mm512_load_si512(w.corrections), _mm512_load_si512(w.corrections + 16)};
    ((acc[ROW][0] = first[0], acc[ROW][1] = first[1]), ...);
    for (int k = 0; k < GROUP; k += 4) {
      const uint8_t* codes = x.codes + k / 64 * x.next + k % 64;
      const __m512i w0 = _mm512_load_si512(w.codes + k * kPanel), w1 = _mm512_load_si512(w.codes + k * kPanel + 64);
      (multiply_row<ROW, GROUP>(acc[ROW], codes, w0, w1), ...);
    }
    (scale_row(acc[ROW], w.scales, x.scales[ROW], sums + ROW * kPanel), ...);
  }(std::make_index_sequence<R>{});
}

}  // namespace estream::ESTREAM_VARIANT
