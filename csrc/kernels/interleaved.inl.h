// What the products of interleaved rows share.
#pragma once
#include <cstring>

#include "kernels/matmul.inl.h"

namespace estream::ESTREAM_VARIANT {

// Prefetches weights that lie kAhead bytes ahead. Into the L2 cache, which has more misses in flight than L1.
ESTREAM_INLINE void prefetch_block(const PackedMatrix& w, const uint8_t* block) {
  constexpr size_t kAhead = 4096;
  for (size_t i = 0; i < w.block_bytes(); i += 64) __builtin_prefetch(block + kAhead + i, 0, 2);
}

// The epilogue of `count` rows from `first` on. Not inlined, so that the many products share one copy.
ESTREAM_NOINLINE inline void epilogue_rows(const float* sums, int first, int count, int panel, int outputs,
                                           const PanelOutput& out) {
  for (int r = 0; r < count; r++) {
    const F16 sum[1][2] = {{load(sums + r * kPanel), load(sums + r * kPanel + 16)}};
    epilogue<1>(sum, first + r, panel, outputs, out);
  }
}

}  // namespace estream::ESTREAM_VARIANT
