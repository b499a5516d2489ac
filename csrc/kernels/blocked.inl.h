// Products of many rows: each group of a panel's weights is unpacked once, to signed bytes that stay in the first-level
// cache, and multiplied with all rows. Rows come in tile order (TiledRows), so that those read together lie together.
//
// A variant provides the product of R rows with one unpacked group:
//
//   constexpr int kBlockRows;   // the largest R
//   template <int R, int BITS, int GROUP>
//   void multiply_rows(const GroupWeights<BITS, GROUP>& w, const UnsignedRows& x, float* sums);
//   void find_corrections(const int8_t* codes, int group, int32_t* corrections);   // of one plane, see GroupWeights
//
// sums[R][32] = fma(float(integer product), weight scale * activation scale, sums), the order of the product by rows.
#pragma once
// This variant multiplies many rows at once.
#define ESTREAM_BLOCKED
#include "tile_rows.inl.h"

namespace estream::ESTREAM_VARIANT {

// One group of one panel: plane after plane of [GROUP / 4, 32 outputs, 4 inputs].
template <int BITS, int GROUP>
struct GroupWeights {
  // A variant may split 8-bit weights into two planes, w = low + 16 * high, both within [-8, 8].
  static constexpr int kPlanes = BITS == 8 && kSplitBytes ? 2 : 1;
  alignas(64) int8_t codes[kPlanes * GROUP * kPanel];
  // What the activations' offset of 128 adds to the products, to be taken back: -128 * sum of weights.
  alignas(64) int32_t corrections[kPanel];
  F16 scales[2];
};

// Activations stored with an offset of 128: the dot product takes unsigned bytes on one side only.
struct UnsignedRows {
  const uint8_t* codes;  // of the first row; rows are 64 bytes apart
  int64_t next;          // from 64 columns to the next 64
  const float* scales;   // one of each row
};

template <int BITS>
ESTREAM_INLINE void unpack_codes(const uint8_t* block, int group, int8_t* to) {
  if constexpr (BITS == 4) {
    for (int step = 0; step < group / 8; step++, block += 128, to += 256)
      for (int i = 0; i < 128; i++) {
        to[i] = static_cast<int8_t>((block[i] & 15) - 8);
        to[128 + i] = static_cast<int8_t>((block[i] >> 4) - 8);
      }
  } else {
    for (int i = 0; i < group * kPanel; i++) to[i] = static_cast<int8_t>(block[i] ^ 0x80);
  }
}

template <int BITS, int GROUP>
ESTREAM_INLINE void unpack_weights(const uint8_t* block, GroupWeights<BITS, GROUP>& w) {
  unpack_codes<BITS>(block, GROUP, w.codes);
  find_corrections(w.codes, GROUP, w.corrections);
  if constexpr (w.kPlanes == 2)
    for (int i = 0; i < GROUP * kPanel; i++) {
      const int code = w.codes[i], low = ((code + 8) & 15) - 8;
      w.codes[i] = static_cast<int8_t>(low);
      w.codes[GROUP * kPanel + i] = static_cast<int8_t>((code - low) / 16);
    }
  const auto* scales = reinterpret_cast<const uint16_t*>(block + 4 * BITS * GROUP);
  w.scales[0] = load_half(scales);
  w.scales[1] = load_half(scales + 16);
}

// The rows that are left after whole blocks of R, in ever smaller blocks; padding makes up for the last.
template <int R, int BITS, int GROUP>
ESTREAM_INLINE void multiply_all(const GroupWeights<BITS, GROUP>& w, UnsignedRows x, int count, float* sums) {
  for (; count >= R; count -= R, x.codes += 64 * R, x.scales += R, sums += R * kPanel)
    multiply_rows<R, BITS, GROUP>(w, x, sums);
  if constexpr (R > 4) {
    multiply_all<R - 4, BITS, GROUP>(w, x, count, sums);
  } else if constexpr (R > 1 && R < 4) {
    multiply_all<R - 1, BITS, GROUP>(w, x, count, sums);
  } else if (count > 0) {
    multiply_rows<R, BITS, GROUP>(w, x, sums);
  }
}

template <int BITS, int GROUP>
inline void panel_blocked(const PackedMatrix& w, int panel, const TiledRows& x, int count, const PanelOutput& out,
                          float* sums) {
  GroupWeights<BITS, GROUP> weights;
  for (int i = 0; i < (count + 15) / 16 * 16 * kPanel; i += 16) store(sums + i, zero());
  const uint8_t* block = w.data + panel * w.panel_bytes();
  const int64_t next = static_cast<int64_t>(x.blocks) * kTileBytes;
  for (int g = 0; g < w.groups(); g++, block += w.block_bytes()) {
    prefetch_block(w, block);
    unpack_weights<BITS, GROUP>(block, weights);
    const auto* codes = reinterpret_cast<const uint8_t*>(x.codes) + g * GROUP / 64 * next + g * GROUP % 64;
    const float* scales = x.scales + static_cast<int64_t>(g) * x.blocks * 16;
    multiply_all<kBlockRows, BITS, GROUP>(weights, {codes, next, scales}, count, sums);
  }
  emit_rows(sums, count, panel, w.outputs, out);
}

inline void matmul_panel_tiled(const PackedMatrix& w, int panel, const TiledRows& x, int count, const PanelOutput& out,
                               float* scratch) {
  for_layout(w, [&]<int BITS, int GROUP>() { panel_blocked<BITS, GROUP>(w, panel, x, count, out, scratch); });
}

}  // namespace estream::ESTREAM_VARIANT
