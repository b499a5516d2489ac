// Products of blocks of 16 rows with AMX: one instruction multiplies 16 rows, 16 outputs and 64 inputs. Rows are copied into
// the layout of AMX tiles once for all panels of a matrix. Few rows take the product of AVX-512 VNNI instead. Both give the
// same bits: the same exact integers, scaled and summed in the same order.
#pragma once
#include "kernels/interleaved.inl.h"

namespace estream::ESTREAM_VARIANT {

constexpr int kTileBytes = 16 * 64;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};

ESTREAM_INLINE void load_tile_config(const TileConfig& config) {
  // GCC believes that its intrinsic reads only eight bytes of the configuration.
  asm volatile("" : : "m"(config));
  _tile_loadconfig(&config);
}

// Tiles 0 and 1 hold sums, 2 and 3 activations, 4 and 5 weights of the first 16 outputs, 6 and 7 those of the others.
template <int GROUP>
inline void configure_tiles() {
  constexpr int kInputs = GROUP < 64 ? GROUP : 64;
  TileConfig config;
  for (int t = 0; t < 8; t++) {
    config.rows[t] = t < 4 ? 16 : kInputs / 4;
    config.column_bytes[t] = t == 2 || t == 3 ? kInputs : 64;
  }
  load_tile_config(config);
}

// Signed weights of one group, [half][GROUP / 4][16 outputs][4 inputs].
template <int BITS, int GROUP>
inline void unpack_group(const uint8_t* block, uint8_t* to) {
  constexpr int kHalf = GROUP * 16;
  for (int half = 0; half < 2; half++) {
    uint8_t* out = to + half * kHalf;
    if constexpr (BITS == 4) {
      const __m512i low = _mm512_set1_epi8(15), offset = _mm512_set1_epi8(8);
      for (int s = 0; s < GROUP / 8; s++) {
        const __m512i w = _mm512_loadu_si512(block + s * 128 + half * 64);
        _mm512_storeu_si512(out + s * 128, _mm512_sub_epi8(_mm512_and_si512(w, low), offset));
        _mm512_storeu_si512(out + s * 128 + 64, _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(w, 4), low), offset));
      }
    } else {
      const __m512i sign = _mm512_set1_epi8(-128);
      for (int s = 0; s < GROUP / 4; s++)
        _mm512_storeu_si512(out + s * 64, _mm512_xor_si512(_mm512_loadu_si512(block + s * 128 + half * 64), sign));
    }
  }
}

template <int GROUP>
inline void multiply_block(const int8_t* rows, int blocks, int32_t* products) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(2, rows, 64);
  _tile_dpbssd(0, 2, 4);
  _tile_dpbssd(1, 2, 6);
  if constexpr (GROUP == 128) {
    _tile_loadd(3, rows + blocks * kTileBytes, 64);
    _tile_dpbssd(0, 3, 5);
    _tile_dpbssd(1, 3, 7);
  }
  _tile_stored(0, products, 64);
  _tile_stored(1, products + 256, 64);
}

// sum += products * scales, for 16 rows and 32 outputs.
inline void scale_block(const int32_t (&products)[2][16][16], const float* row_scales, F16 s0, F16 s1, float* sum) {
  for (int r = 0; r < 16; r++, sum += kPanel) {
    const F16 a = set1(row_scales[r]);
    const F16 p0 = {_mm512_cvtepi32_ps(_mm512_load_si512(products[0][r]))};
    const F16 p1 = {_mm512_cvtepi32_ps(_mm512_load_si512(products[1][r]))};
    store(sum, fma(p0 * s0, a, load(sum)));
    store(sum + 16, fma(p1 * s1, a, load(sum + 16)));
  }
}

// Codes [columns / 64, blocks, 16, 64] and scales [groups, blocks, 16], padded with zeros.
inline void interleave_rows(const QuantizedRows& x, const int32_t* x_rows, int count, int /*bits*/, int block,
                            const InterleavedRows& to) {
  const int present = count - block * 16 < 16 ? count - block * 16 : 16;
  for (int r = 0; r < 16; r++) {
    const int64_t row = r >= present ? 0 : x_rows ? x_rows[block * 16 + r] : block * 16 + r;
    const int8_t* codes = x.codes + row * x.columns;
    for (int k = 0; k < x.columns; k += 64) {
      int8_t* out = to.codes + (static_cast<int64_t>(k / 64) * to.blocks + block) * kTileBytes + r * 64;
      const int width = r >= present ? 0 : x.columns - k < 64 ? x.columns - k : 64;
      if (width < 64) std::memset(out, 0, 64);
      std::memcpy(out, codes + k, width);
    }
    for (int g = 0; g < x.groups; g++)
      to.scales[(static_cast<int64_t>(g) * to.blocks + block) * 16 + r] = r < present ? x.scales[row * x.groups + g] : 0.0f;
  }
}

template <int BITS, int GROUP>
inline void panel_amx(const PackedMatrix& w, int panel, const InterleavedRows& x, int count, const PanelOutput& out,
                      float* sums) {
  alignas(64) uint8_t weights[GROUP * 32];
  alignas(64) int32_t products[2][2][16][16];
  const int groups = w.groups(), row_blocks = (count + 15) / 16;
  for (int i = 0; i < row_blocks * 16 * kPanel; i += 16) store(sums + i, zero());
  configure_tiles<GROUP>();
  const uint8_t* block = w.data + panel * w.panel_bytes();
  for (int g = 0; g < groups; g++, block += w.block_bytes()) {
    prefetch_block(w, block);
    unpack_group<BITS, GROUP>(block, weights);
    _tile_loadd(4, weights, 64);
    _tile_loadd(6, weights + GROUP * 16, 64);
    if constexpr (GROUP == 128) {
      _tile_loadd(5, weights + 1024, 64);
      _tile_loadd(7, weights + GROUP * 16 + 1024, 64);
    }
    const auto* scales = reinterpret_cast<const uint16_t*>(block + 4 * BITS * GROUP);
    const F16 s0 = load_half(scales), s1 = load_half(scales + 16);
    const int8_t* rows = x.codes + g * GROUP / 64 * x.blocks * kTileBytes + g * GROUP % 64;
    const float* row_scales = x.scales + static_cast<int64_t>(g) * x.blocks * 16;
    // The next block is multiplied while this one's products are scaled, because AMX has a long latency.
    multiply_block<GROUP>(rows, x.blocks, &products[0][0][0][0]);
    for (int b = 0; b < row_blocks; b++) {
      if (b + 1 < row_blocks) multiply_block<GROUP>(rows + (b + 1) * kTileBytes, x.blocks, &products[(b + 1) % 2][0][0][0]);
      scale_block(products[b % 2], row_scales + b * 16, s0, s1, sums + b * 16 * kPanel);
    }
  }
  _tile_release();
  epilogue_rows(sums, 0, count, panel, w.outputs, out);
}

inline void matmul_panel_interleaved(const PackedMatrix& w, int panel, const InterleavedRows& x, int count,
                                     const PanelOutput& out, float* scratch) {
  for_layout(w, [&]<int BITS, int GROUP>() { panel_amx<BITS, GROUP>(w, panel, x, count, out, scratch); });
}

}  // namespace estream::ESTREAM_VARIANT
