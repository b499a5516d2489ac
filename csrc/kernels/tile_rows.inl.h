// What products over rows in tile order share.
#pragma once
#include <cstring>

#include "matmul.inl.h"

namespace estream::ESTREAM_VARIANT {

// Blocks of weights to come are fetched into the second-level cache, which has more requests in flight than the first.
ESTREAM_INLINE void prefetch_block(const PackedMatrix& w, const uint8_t* block) {
  constexpr size_t kAhead = 4096;
  for (size_t i = 0; i < w.block_bytes(); i += 64) __builtin_prefetch(block + kAhead + i, 0, 2);
}

inline void emit_rows(const float* sums, int count, int panel, int outputs, const PanelOutput& out) {
  for (int r = 0; r < count; r++) {
    const F16 sum[1][2] = {{load(sums + r * kPanel), load(sums + r * kPanel + 16)}};
    emit<1>(sum, r, panel, outputs, out);
  }
}

// FLIP turns signed codes into unsigned ones with an offset of 128.
template <uint8_t FLIP>
inline void tile_rows(const QuantizedRows& x, const int32_t* x_rows, int count, int block, const TiledRows& to) {
  const int present = count - block * 16 < 16 ? count - block * 16 : 16;
  for (int r = 0; r < 16; r++) {
    const int64_t row = r >= present ? 0 : x_rows ? x_rows[block * 16 + r] : block * 16 + r;
    const int8_t* codes = x.codes + row * x.columns;
    for (int k = 0; k < to.columns; k += 64) {
      int8_t* out = to.codes + (static_cast<int64_t>(k / 64) * to.blocks + block) * kTileBytes + r * 64;
      const int width = r >= present ? 0 : x.columns - k < 64 ? x.columns - k : 64;
      if (width == 64) {
        for (int i = 0; i < 64; i++) out[i] = static_cast<int8_t>(codes[k + i] ^ FLIP);
      } else {
        std::memset(out, 0, 64);
        for (int i = 0; i < width; i++) out[i] = static_cast<int8_t>(codes[k + i] ^ FLIP);
      }
    }
    for (int g = 0; g < x.groups; g++)
      to.scales[(static_cast<int64_t>(g) * to.blocks + block) * 16 + r] = r < present ? x.scales[row * x.groups + g] : 0.0f;
  }
}

}  // namespace estream::ESTREAM_VARIANT
