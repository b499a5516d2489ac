// Products of many rows: each group of a panel's weights is unpacked once, to bytes that stay in the first-level cache, and
// multiplied with all rows, which lie interleaved (BlockedRows): a product then reads neighbouring words.
//
// A variant provides the product of R rows with N unpacked groups:
//
//   constexpr int kBlockRows;          // the largest R
//   constexpr int kGroupsAtOnce;       // the largest N
//   constexpr int kPackedRows;         // so few have weights unpacked anew for each block (multiply_packed), or 0
//   constexpr bool kSplitBytes;        // whether 8-bit codes come as two planes
//   constexpr int kFewestBlockedRows;  // for fewer rows the product by rows is faster
//   constexpr float kStartFloat;       // its bits are what integer sums begin with, less what takes back the weights' offset
//   template <int R, int N, int BITS, int GROUP>
//   void multiply_rows(const GroupWeights<BITS, GROUP>* w, BlockedRows x, float* sums);
//
// sums[R][32] = fma(float(integer product) * weight scale, activation scale, sums) for each group in turn, the order of the
// product by rows.
#pragma once
// This variant multiplies many rows at once.
#define ESTREAM_BLOCKED
#include <bit>

#include "kernels/tiled.inl.h"

namespace estream::ESTREAM_VARIANT {

// One group of one panel: unsigned codes as they are stored, a byte each, [GROUP / 4, 32 outputs, 4 inputs].
template <int BITS, int GROUP>
struct GroupWeights {
  // A variant may split 8-bit codes into two planes of four bits, the lower first.
  static constexpr int kPlanes = BITS == 8 && kSplitBytes ? 2 : 1;
  const uint8_t* codes;
  F16 scales[2];
  F16 starts[2];  // -kStartFloat times the scales, exact; only where that is not zero
};

// One group of one block of rows.
struct BlockedRows {
  const int8_t* codes;    // [GROUP / 4, kBlockRows, 4 inputs]
  const float* scales;    // [kBlockRows]
  const int32_t* starts;  // [kBlockRows]: the bits of kStartFloat, less the sum of the codes times the weights' offset

  template <int GROUP>
  ESTREAM_INLINE BlockedRows after(int64_t count) const {
    return {codes + count * GROUP * kBlockRows, scales + count * kBlockRows, starts + count * kBlockRows};
  }
};

template <int BITS, int GROUP>
ESTREAM_INLINE void load_scales(const uint16_t* scales, GroupWeights<BITS, GROUP>& w) {
  for (int half = 0; half < 2; half++) {
    w.scales[half] = load_half(scales + 16 * half);
    if constexpr (kStartFloat != 0.0f) w.starts[half] = w.scales[half] * set1(-kStartFloat);
  }
}

// How rows are dealt out to blocks: evenly, as a block of few leaves the arithmetic idle.
struct Dealt {
  const int base, larger;  // the first `larger` blocks have one row more than `base`
  ESTREAM_INLINE Dealt(int count, int blocks) : base(count / blocks), larger(count % blocks) {}
  ESTREAM_INLINE int first(int block) const { return base * block + (block < larger ? block : larger); }
  ESTREAM_INLINE int rows(int block) const { return base + (block < larger); }
};

// Where one group of one block lies, in groups of blocks: [groups / N, blocks, N], where N is kGroupsAtOnce; groups that are
// left over come singly.
ESTREAM_INLINE int64_t place_of(int g, int groups, int block, int blocks) {
  const int at_once = g < groups / kGroupsAtOnce * kGroupsAtOnce ? kGroupsAtOnce : 1;
  return (static_cast<int64_t>(g / at_once) * blocks + block) * at_once + g % at_once;
}

template <int GROUP>
ESTREAM_INLINE BlockedRows rows_at(const TiledRows& x, int64_t place) {
  return BlockedRows{x.codes, x.scales, x.starts}.after<GROUP>(place);
}

// Writes the codes of one group to `to`, or leaves them where they are.
template <int BITS, int GROUP>
ESTREAM_INLINE GroupWeights<BITS, GROUP> unpack_weights(const uint8_t* __restrict block, uint8_t* __restrict to) {
  GroupWeights<BITS, GROUP> w;
  w.codes = to;
  if constexpr (BITS == 4) {
    for (int step = 0; step < GROUP / 8; step++)
      for (int i = 0; i < 128; i++) {
        to[256 * step + i] = block[128 * step + i] & 15;
        to[256 * step + 128 + i] = block[128 * step + i] >> 4;
      }
  } else if constexpr (w.kPlanes == 2) {
    for (int i = 0; i < GROUP * kPanel; i++) {
      to[i] = block[i] & 15;
      to[GROUP * kPanel + i] = block[i] >> 4;
    }
  } else {
    w.codes = block;
  }
  load_scales(reinterpret_cast<const uint16_t*>(block + 4 * BITS * GROUP), w);
  return w;
}

// Fetches the places that results of rows from `first` on go to.
ESTREAM_INLINE void prefetch_rows(int first, int count, int panel, const PanelOutput& out) {
  const bool narrow = out.write == Write::swiglu || out.write == Write::clamped_swiglu;
  for (int r = first; r < first + count; r++) {
    const float* row = out.data + (out.rows ? out.rows[r] : r) * out.stride + panel * (narrow ? 16 : kPanel);
    __builtin_prefetch(row, 1);
    if (!narrow) __builtin_prefetch(row + 16, 1);
  }
}

// The rows of one block that are there.
template <int R, int N, int BITS, int GROUP>
ESTREAM_INLINE void multiply_present(int count, const GroupWeights<BITS, GROUP>* w, const BlockedRows& x, float* sums) {
  if constexpr (R > 1)
    if (count < R) return multiply_present<R - 1, N>(count, w, x, sums);
  multiply_rows<R, N>(w, x, sums);
}

// Where a variant's kPackedRows is not 0, this too: all groups of a panel times R rows of one block, weights unpacked on the
// way.
template <int R, int BITS, int GROUP>
inline void multiply_packed(const PackedMatrix& w, int panel, const TiledRows& x, int block, float* sums);

// The product of one panel with all rows.
template <int BITS, int GROUP>
struct BlockedPanel {
  using Weights = GroupWeights<BITS, GROUP>;
  static constexpr int kUnpackedBytes = Weights::kPlanes * GROUP * kPanel;
  const PackedMatrix& w;
  const int panel;
  const TiledRows& x;
  const int count;
  const PanelOutput& out;
  float* sums;
  const Dealt dealt{count, x.blocks};

  // N groups from `first` on; `rows` are those of its first block.
  template <int N>
  ESTREAM_INLINE void multiply_groups(int first, const BlockedRows& rows) const {
    alignas(64) uint8_t unpacked[N * kUnpackedBytes];
    Weights weights[N];
    for (int n = 0; n < N; n++) {
      const uint8_t* block = w.data + panel * w.panel_bytes() + (first + n) * w.block_bytes();
      prefetch_block(w, block);
      weights[n] = unpack_weights<BITS, GROUP>(block, unpacked + n * kUnpackedBytes);
    }
    const bool last = first + N == w.groups();
    for (int b = 0; b < x.blocks; b++) {
      const int row = dealt.first(b), present = dealt.rows(b);
      float* block_sums = sums + row * kPanel;
      // Results leave block by block, so that misses of the cache overlap with products.
      if (last) prefetch_rows(row, present, panel, out);
      multiply_present<kBlockRows, N>(present, weights, rows.after<GROUP>(b * N), block_sums);
      if (last) emit_rows(block_sums, row, present, panel, w.outputs, out);
    }
  }
  // One block after another with weights that are unpacked on the way.
  template <int R>
  ESTREAM_INLINE void multiply_packed_block(int block, int row, int present) const {
    if constexpr (R > 1)
      if (present < R) return multiply_packed_block<R - 1>(block, row, present);
    multiply_packed<R, BITS, GROUP>(w, panel, x, block, sums);
    emit_rows(sums, row, R, panel, w.outputs, out);
  }
  inline void multiply_few() const {
    for (int b = 0; b < x.blocks; b++) multiply_packed_block<kBlockRows>(b, dealt.first(b), dealt.rows(b));
  }
  inline void multiply() const {
    if constexpr (kPackedRows > 0)
      if (count <= kPackedRows) return multiply_few();
    for (int i = 0; i < count * kPanel; i += 16) store(sums + i, zero());
    const int whole = w.groups() / kGroupsAtOnce * kGroupsAtOnce;
    int g = 0;
    for (; g < whole; g += kGroupsAtOnce) multiply_groups<kGroupsAtOnce>(g, rows_at<GROUP>(x, int64_t{g} * x.blocks));
    for (; g < w.groups(); g++) multiply_groups<1>(g, rows_at<GROUP>(x, int64_t{g} * x.blocks));
  }
};

inline void matmul_panel_tiled(const PackedMatrix& w, int panel, const TiledRows& x, int count, const PanelOutput& out,
                               float* scratch) {
  for_layout(w, [&]<int BITS, int GROUP>() { BlockedPanel<BITS, GROUP>{w, panel, x, count, out, scratch}.multiply(); });
}

// Puts the words of 32 inputs of one row among those of its block.
ESTREAM_INLINE void spread(const int8_t* __restrict from, int8_t* __restrict to) {
  int32_t words[8];
  std::memcpy(words, from, sizeof words);
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) std::memcpy(to + 4 * kBlockRows * i, words + i, 4);
}

inline void tile_rows(const QuantizedRows& x, const int32_t* x_rows, int count, int bits, int block, const TiledRows& to) {
  const int group = x.columns / x.groups, offset = bits == 4 ? 8 : 128;
  const Dealt dealt(count, to.blocks);
  for (int r = 0; r < dealt.rows(block); r++) {
    const int index = dealt.first(block) + r;
    const int64_t row = x_rows ? x_rows[index] : index;
    const int8_t* codes = x.codes + row * x.columns;
    const float* scales = x.scales + row * x.groups;
    const int32_t* sums = x.sums + row * x.groups;
    for (int g = 0; g < x.groups; g++, codes += group) {
      const int64_t place = place_of(g, x.groups, block, to.blocks);
      int8_t* words = to.codes + place * group * kBlockRows + 4 * r;
      for (int k = 0; k < group; k += 32) spread(codes + k, words + k * kBlockRows);
      to.scales[place * kBlockRows + r] = scales[g];
      to.starts[place * kBlockRows + r] = std::bit_cast<int32_t>(kStartFloat) - sums[g] * offset;
    }
  }
}

}  // namespace estream::ESTREAM_VARIANT
