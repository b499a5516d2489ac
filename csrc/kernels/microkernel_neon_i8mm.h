// The integer micro-kernel with NEON's matrix product of two rows and two outputs over eight signed bytes.
#pragma once
#include "kernels/row_pointers.h"
#include "kernels/simd_neon.h"

namespace estream::ESTREAM_VARIANT {

constexpr int kMicrokernelRows = 8;

// The first eight bytes of two rows, or the last eight.
inline int8x16_t pair_low(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
inline int8x16_t pair_high(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
// The first two outputs of two vectors of four, or the last two, with the bytes of both vectors.
inline int8x16_t zip_low(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}
inline int8x16_t zip_high(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}

// The weights of four outputs: of four inputs in `first`, of the next four in `second`.
template <int BITS>
inline void unpack(const uint8_t* bytes, int8x16_t& first, int8x16_t& second) {
  const uint8x16_t w = vld1q_u8(bytes);
  if constexpr (BITS == 4) {
    first = vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15)));
    second = vreinterpretq_s8_u8(vshrq_n_u8(w, 4));
  } else {
    // Less its zero point of 128, a byte is a signed number.
    const uint8x16_t zero_point = vdupq_n_u8(128);
    first = vreinterpretq_s8_u8(veorq_u8(w, zero_point));
    second = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(bytes + 128), zero_point));
  }
}

// The products of P pairs of rows with eight outputs over eight inputs. Each accumulator holds two rows by two outputs.
template <int P, int BITS>
inline void step(int32x4_t (&acc)[P][4], const uint8_t* bytes, const int8x16_t (&rows)[P]) {
  for (int v = 0; v < 2; v++) {
    int8x16_t first, second;
    unpack<BITS>(bytes + 16 * v, first, second);
    const int8x16_t low = zip_low(first, second), high = zip_high(first, second);
    for (int p = 0; p < P; p++) {
      acc[p][2 * v] = vmmlaq_s32(acc[p][2 * v], rows[p], low);
      acc[p][2 * v + 1] = vmmlaq_s32(acc[p][2 * v + 1], rows[p], high);
    }
  }
}

// The same over one group.
template <int P, int BITS, int GROUP>
inline void multiply(int32x4_t (&acc)[P][4], const uint8_t* bytes, const int8_t* const (&codes)[2 * P]) {
  for (int k = 0; k < GROUP; k += 16, bytes += 64 * BITS) {
    int8x16_t low[P], high[P];
    for (int p = 0; p < P; p++) {
      const int8x16_t a = vld1q_s8(codes[2 * p] + k), b = vld1q_s8(codes[2 * p + 1] + k);
      low[p] = pair_low(a, b);
      high[p] = pair_high(a, b);
    }
    step<P, BITS>(acc, bytes, low);
    step<P, BITS>(acc, bytes + 32 * BITS, high);
  }
}

// A quarter of a panel at a time, so that the sums of eight rows stay in registers. An odd last row is paired with itself.
template <int R, int BITS, int GROUP>
inline void microkernel(const uint8_t* panel, int groups, const RowPointers<R>& x, F16 (&sum)[R][2]) {
  constexpr int kPairs = (R + 1) / 2;
  constexpr int kCodesBytes = 4 * BITS * GROUP;
  for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = zero();
  for (int g = 0; g < groups; g++) {
    const uint8_t* block = panel + g * (kCodesBytes + 64);
    const int8_t* codes[2 * kPairs];
    for (int i = 0; i < 2 * kPairs; i++) codes[i] = x.codes[i < R ? i : R - 1] + g * GROUP;
    for (int quarter = 0; quarter < 4; quarter++) {
      int32x4_t acc[kPairs][4];
      for (int p = 0; p < kPairs; p++) {
        const int last = 2 * p + 1 < R ? 2 * p + 1 : R - 1;
        const int32x2_t upper = vdup_n_s32(BITS == 4 ? -8 * x.sums[2 * p][g] : 0);
        const int32x2_t lower = vdup_n_s32(BITS == 4 ? -8 * x.sums[last][g] : 0);
        for (int i = 0; i < 4; i++) acc[p][i] = vcombine_s32(upper, lower);
      }
      multiply<kPairs, BITS, GROUP>(acc, block + 32 * quarter, codes);
      const auto* scales = reinterpret_cast<const uint16_t*>(block + kCodesBytes) + 8 * quarter;
      for (int v = 0; v < 2; v++) {
        const float32x4_t scale = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(scales + 4 * v)));
        for (int r = 0; r < R; r++) {
          const int32x4_t a = acc[r / 2][2 * v], b = acc[r / 2][2 * v + 1];
          const int32x4_t product =
              r % 2 == 0 ? vcombine_s32(vget_low_s32(a), vget_low_s32(b)) : vcombine_s32(vget_high_s32(a), vget_high_s32(b));
          float32x4_t& to = sum[r][quarter / 2].v[quarter % 2 * 2 + v];
          to = vfmaq_n_f32(to, vmulq_f32(vcvtq_f32_s32(product), scale), x.scales[r][g]);
        }
      }
    }
  }
}

}  // namespace estream::ESTREAM_VARIANT
