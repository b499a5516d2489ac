// What products over rows in tile order share.
#pragma once
#include <cstring>

#include "kernels/matmul.inl.h"

namespace estream::ESTREAM_VARIANT {

// Blocks of weights to come are fetched into the second-level cache, which has more requests in flight than the first.
ESTREAM_INLINE void prefetch_block(const PackedMatrix& w, const uint8_t* block) {
  constexpr size_t kAhead = 4096;
  for (size_t i = 0; i < w.block_bytes(); i += 64) __builtin_prefetch(block + kAhead + i, 0, 2);
}

// Writes the sums of rows from `first` on to their destinations. Not inlined: each of many products would hold a copy.
ESTREAM_NOINLINE inline void emit_rows(const float* sums, int first, int count, int panel, int outputs,
                                       const PanelOutput& out) {
  for (int r = 0; r < count; r++) {
    const F16 sum[1][2] = {{load(sums + r * kPanel), load(sums + r * kPanel + 16)}};
    emit<1>(sum, first + r, panel, outputs, out);
  }
}

}  // namespace estream::ESTREAM_VARIANT
