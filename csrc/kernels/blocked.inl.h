// The cache-blocked product of many rows. It unpacks each group of a panel's weights once, to bytes that stay in the L1 cache,
// and multiplies them with all rows. The rows are interleaved (RowBlock), so that a product reads neighbouring words.
//
// A variant provides the product of R rows with N unpacked groups:
//
//   constexpr int kBlockRows;       // the largest R
//   constexpr int kGroupsAtOnce;    // the largest N
//   constexpr int kPackedRows;      // up to this many rows, weights are unpacked again for each block (multiply_packed); or 0
//   constexpr bool kSplitBytes;     // whether 8-bit codes are split into two planes
//   constexpr int kMinBlockedRows;  // for fewer rows matmul_panel is faster
//   constexpr float kMagicFloat;    // integer accumulators begin with its bits, less the zero-point correction
//   template <int R, int N, int BITS, int GROUP>
//   void multiply_rows(const GroupWeights<BITS, GROUP>* w, RowBlock x, float* sums);
//
// multiply_rows computes sums[R][32] = fma(float(integer product) * weight scale, activation scale, sums) for each group in
// turn, in the order of matmul_panel.
#pragma once
// This variant multiplies many rows at once.
#define ESTREAM_BLOCKED
#include <bit>

#include "kernels/interleaved.inl.h"

namespace estream::ESTREAM_VARIANT {

// One group of one panel: unsigned codes as they are stored, one in each byte, [GROUP / 4, 32 outputs, 4 inputs].
template <int BITS, int GROUP>
struct GroupWeights {
  // A variant may split 8-bit codes into two planes of four bits, the lower first.
  static constexpr int kPlanes = BITS == 8 && kSplitBytes ? 2 : 1;
  const uint8_t* codes;
  F16 scales[2];
  F16 corrections[2];  // -kMagicFloat times the scales, exact; unset where kMagicFloat is zero
};

// One group of one block of rows.
struct RowBlock {
  const int8_t* codes;          // [GROUP / 4, kBlockRows, 4 inputs]
  const float* scales;          // [kBlockRows]
  const int32_t* initial_sums;  // [kBlockRows]: the bits of kMagicFloat, less the sum of the codes times the zero point

  template <int GROUP>
  ESTREAM_INLINE RowBlock after(int64_t count) const {
    return {codes + count * GROUP * kBlockRows, scales + count * kBlockRows, initial_sums + count * kBlockRows};
  }
};

template <int BITS, int GROUP>
ESTREAM_INLINE void load_scales(const uint16_t* scales, GroupWeights<BITS, GROUP>& w) {
  for (int half = 0; half < 2; half++) {
    w.scales[half] = load_half(scales + 16 * half);
    if constexpr (kMagicFloat != 0.0f) w.corrections[half] = w.scales[half] * set1(-kMagicFloat);
  }
}

// How rows are divided among blocks: evenly, because a block of few rows leaves arithmetic units idle.
struct RowPartition {
  const int base, larger;  // the first `larger` blocks have one row more than `base`
  ESTREAM_INLINE RowPartition(int count, int blocks) : base(count / blocks), larger(count % blocks) {}
  ESTREAM_INLINE int first(int block) const { return base * block + (block < larger ? block : larger); }
  ESTREAM_INLINE int rows(int block) const { return base + (block < larger); }
};

// The index of one group of one block in the order [groups / N, blocks, N], where N is kGroupsAtOnce. Groups that are left
// over follow one by one.
ESTREAM_INLINE int64_t group_index(int g, int groups, int block, int blocks) {
  const int at_once = g < groups / kGroupsAtOnce * kGroupsAtOnce ? kGroupsAtOnce : 1;
  return (static_cast<int64_t>(g / at_once) * blocks + block) * at_once + g % at_once;
}

template <int GROUP>
ESTREAM_INLINE RowBlock rows_at(const InterleavedRows& x, int64_t index) {
  return RowBlock{x.codes, x.scales, x.initial_sums}.after<GROUP>(index);
}

// Unpacks the codes of one group to `to`. Whole bytes need no unpacking and stay where they are.
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

// Prefetches the memory to which the results of `count` rows from `first` on are written.
ESTREAM_INLINE void prefetch_rows(int first, int count, int panel, const PanelOutput& out) {
  const bool narrow = out.write == Write::swiglu || out.write == Write::clamped_swiglu;
  for (int r = first; r < first + count; r++) {
    const float* row = out.data + (out.rows ? out.rows[r] : r) * out.stride + panel * (narrow ? 16 : kPanel);
    __builtin_prefetch(row, 1);
    if (!narrow) __builtin_prefetch(row + 16, 1);
  }
}

// The product with the `count` rows that a block holds.
template <int R, int N, int BITS, int GROUP>
ESTREAM_INLINE void multiply_present(int count, const GroupWeights<BITS, GROUP>* w, const RowBlock& x, float* sums) {
  if constexpr (R > 1)
    if (count < R) return multiply_present<R - 1, N>(count, w, x, sums);
  multiply_rows<R, N>(w, x, sums);
}

// A variant whose kPackedRows is not 0 provides this too: all groups of a panel times R rows of one block, with weights
// unpacked in registers.
template <int R, int BITS, int GROUP>
inline void multiply_packed(const PackedMatrix& w, int panel, const InterleavedRows& x, int block, float* sums);

// The product of one panel with all rows.
template <int BITS, int GROUP>
struct BlockedPanel {
  using Weights = GroupWeights<BITS, GROUP>;
  static constexpr int kUnpackedBytes = Weights::kPlanes * GROUP * kPanel;
  const PackedMatrix& w;
  const int panel;
  const InterleavedRows& x;
  const int count;
  const PanelOutput& out;
  float* sums;
  const RowPartition partition{count, x.blocks};

  // N groups from `first` on; `rows` is that group of the first block.
  template <int N>
  ESTREAM_INLINE void multiply_groups(int first, const RowBlock& rows) const {
    alignas(64) uint8_t unpacked[N * kUnpackedBytes];
    Weights weights[N];
    for (int n = 0; n < N; n++) {
      const uint8_t* block = w.data + panel * w.panel_bytes() + (first + n) * w.block_bytes();
      prefetch_block(w, block);
      weights[n] = unpack_weights<BITS, GROUP>(block, unpacked + n * kUnpackedBytes);
    }
    const bool last = first + N == w.groups();
    for (int b = 0; b < x.blocks; b++) {
      const int row = partition.first(b), present = partition.rows(b);
      float* block_sums = sums + row * kPanel;
      // Each block's results are written at once, so that cache misses overlap with the products of the next.
      if (last) prefetch_rows(row, present, panel, out);
      multiply_present<kBlockRows, N>(present, weights, rows.after<GROUP>(b * N), block_sums);
      if (last) epilogue_rows(block_sums, row, present, panel, w.outputs, out);
    }
  }
  // One block, with weights unpacked in registers.
  template <int R>
  ESTREAM_INLINE void multiply_packed_block(int block, int row, int present) const {
    if constexpr (R > 1)
      if (present < R) return multiply_packed_block<R - 1>(block, row, present);
    multiply_packed<R, BITS, GROUP>(w, panel, x, block, sums);
    epilogue_rows(sums, row, R, panel, w.outputs, out);
  }
  inline void multiply_few() const {
    for (int b = 0; b < x.blocks; b++) multiply_packed_block<kBlockRows>(b, partition.first(b), partition.rows(b));
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

inline void matmul_panel_interleaved(const PackedMatrix& w, int panel, const InterleavedRows& x, int count,
                                     const PanelOutput& out, float* scratch) {
  for_layout(w, [&]<int BITS, int GROUP>() { BlockedPanel<BITS, GROUP>{w, panel, x, count, out, scratch}.multiply(); });
}

// Writes the words of 32 inputs of one row between those of the other rows of its block.
ESTREAM_INLINE void interleave_words(const int8_t* __restrict from, int8_t* __restrict to) {
  int32_t words[8];
  std::memcpy(words, from, sizeof words);
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) std::memcpy(to + 4 * kBlockRows * i, words + i, 4);
}

inline void interleave_rows(const QuantizedRows& x, const int32_t* x_rows, int count, int bits, int block,
                            const InterleavedRows& to) {
  const int group = x.columns / x.groups, zero_point = bits == 4 ? 8 : 128;
  const RowPartition partition(count, to.blocks);
  for (int r = 0; r < partition.rows(block); r++) {
    const int source = partition.first(block) + r;
    const int64_t row = x_rows ? x_rows[source] : source;
    const int8_t* codes = x.codes + row * x.columns;
    const float* scales = x.scales + row * x.groups;
    const int32_t* sums = x.sums + row * x.groups;
    for (int g = 0; g < x.groups; g++, codes += group) {
      const int64_t index = group_index(g, x.groups, block, to.blocks);
      int8_t* words = to.codes + index * group * kBlockRows + 4 * r;
      for (int k = 0; k < group; k += 32) interleave_words(codes + k, words + k * kBlockRows);
      to.scales[index * kBlockRows + r] = scales[g];
      to.initial_sums[index * kBlockRows + r] = std::bit_cast<int32_t>(kMagicFloat) - sums[g] * zero_point;
    }
  }
}

}  // namespace estream::ESTREAM_VARIANT
