// The integer micro-kernel with NEON's dot product of four signed bytes.
#pragma once
#include "kernels/row_pointers.h"
#include "kernels/simd_neon.h"

namespace estream::ESTREAM_VARIANT {

constexpr int kMicrokernelRows = 4;

// acc[v] += products of sixteen outputs with the four codes in one lane of `codes`.
template <int LANE, int R>
inline void multiply(int32x4_t (&acc)[R][4], int v, int8x16_t weights, const int8x16_t (&codes)[R]) {
  for (int r = 0; r < R; r++) acc[r][v] = vdotq_laneq_s32(acc[r][v], weights, codes[r], LANE);
}

// 64 bytes of packed weights, for sixteen outputs, times the codes from lane FIRST on.
template <int FIRST, int R, int BITS>
inline void step(int32x4_t (&acc)[R][4], const uint8_t* bytes, const int8x16_t (&codes)[R]) {
  for (int v = 0; v < 4; v++) {
    const uint8x16_t w = vld1q_u8(bytes + 16 * v);
    if constexpr (BITS == 4) {
      multiply<FIRST>(acc, v, vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15))), codes);
      multiply<FIRST + 1>(acc, v, vreinterpretq_s8_u8(vshrq_n_u8(w, 4)), codes);
    } else {
      // Less its zero point of 128, a byte is a signed number.
      multiply<FIRST>(acc, v, vreinterpretq_s8_u8(veorq_u8(w, vdupq_n_u8(128))), codes);
    }
  }
}

// Half a panel at a time, so that the sums of four rows stay in registers.
template <int R, int BITS, int GROUP>
inline void microkernel(const uint8_t* panel, int groups, const RowPointers<R>& x, F16 (&sum)[R][2]) {
  constexpr int kCodesBytes = 4 * BITS * GROUP;
  for (int half = 0; half < 2; half++) {
    for (int r = 0; r < R; r++) sum[r][half] = zero();
    for (int g = 0; g < groups; g++) {
      const uint8_t* block = panel + g * (kCodesBytes + 64);
      const uint8_t* bytes = block + 64 * half;
      int32x4_t acc[R][4];
      for (int r = 0; r < R; r++)
        for (int v = 0; v < 4; v++) acc[r][v] = vdupq_n_s32(BITS == 4 ? -8 * x.sums[r][g] : 0);
      for (int k = 0; k < GROUP; k += 16) {
        int8x16_t codes[R];
        for (int r = 0; r < R; r++) codes[r] = vld1q_s8(x.codes[r] + g * GROUP + k);
        if constexpr (BITS == 4) {
          step<0, R, BITS>(acc, bytes, codes);
          step<2, R, BITS>(acc, bytes + 128, codes);
        } else {
          step<0, R, BITS>(acc, bytes, codes);
          step<1, R, BITS>(acc, bytes + 128, codes);
          step<2, R, BITS>(acc, bytes + 256, codes);
          step<3, R, BITS>(acc, bytes + 384, codes);
        }
        bytes += 64 * BITS;
      }
      const F16 scale = load_half(reinterpret_cast<const uint16_t*>(block + kCodesBytes) + 16 * half);
      for (int r = 0; r < R; r++) {
        const F16 product = each([&](int v) { return vcvtq_f32_s32(acc[r][v]); });
        sum[r][half] = fma(product * scale, set1(x.scales[r][g]), sum[r][half]);
      }
    }
  }
}

}  // namespace estream::ESTREAM_VARIANT
