// The integer micro-kernel in plain C++.
#pragma once
#include "kernels/row_pointers.h"
#include "kernels/simd_portable.h"

namespace estream::ESTREAM_VARIANT {

constexpr int kMicrokernelRows = 2;

template <int R, int BITS, int GROUP>
inline void microkernel(const uint8_t* panel, int groups, const RowPointers<R>& x, F16 (&sum)[R][2]) {
  constexpr int kStep = BITS == 4 ? 8 : 4;
  constexpr int kZeroPoint = BITS == 4 ? 8 : 128;
  for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = zero();
  for (int g = 0; g < groups; g++) {
    int32_t acc[R][32];
    for (int r = 0; r < R; r++)
      for (int output = 0; output < 32; output++) acc[r][output] = -kZeroPoint * x.sums[r][g];
    for (int k = 0; k < GROUP; k += kStep) {
      const uint8_t* bytes = panel + k / kStep * 128;
      for (int r = 0; r < R; r++) {
        const int8_t* a = x.codes[r] + g * GROUP + k;
        for (int output = 0; output < 32; output++) {
          const uint8_t* b = bytes + output * 4;
          if constexpr (BITS == 4) {
            acc[r][output] += (b[0] & 15) * a[0] + (b[1] & 15) * a[1] + (b[2] & 15) * a[2] + (b[3] & 15) * a[3];
            acc[r][output] += (b[0] >> 4) * a[4] + (b[1] >> 4) * a[5] + (b[2] >> 4) * a[6] + (b[3] >> 4) * a[7];
          } else {
            acc[r][output] += b[0] * a[0] + b[1] * a[1] + b[2] * a[2] + b[3] * a[3];
          }
        }
      }
    }
    panel += 4 * BITS * GROUP;
    const auto* scales = reinterpret_cast<const uint16_t*>(panel);
    for (int half = 0; half < 2; half++) {
      const F16 w = load_half(scales + 16 * half);
      for (int r = 0; r < R; r++) {
        const F16 product = each([&](int i) { return static_cast<float>(acc[r][16 * half + i]); });
        sum[r][half] = fma(product * w, set1(x.scales[r][g]), sum[r][half]);
      }
    }
    panel += 64;
  }
}

}  // namespace estream::ESTREAM_VARIANT
