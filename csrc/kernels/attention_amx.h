// Attention in bfloat16 on AMX: tiles of 16 queries by 16 keys, and of 16 queries by 16 value columns.
#pragma once
#include "kernels/attention_bf16.inl.h"
#include "kernels/matmul_amx.h"

namespace estream::ESTREAM_VARIANT {

struct AmxAttention {
  // The tiles cover multiples of 32 head dimensions and of 16 value columns only.
  static bool fits(const AttentionJob& job) { return job.head_dim % 32 == 0 && job.value_dim % 16 == 0; }

  static void prepare(const AttentionBlock& b) {
    Bfloat16Attention::prepare(b);
    TileConfig config;
    for (int t = 0; t < 8; t++) {
      config.rows[t] = 16;
      config.column_bytes[t] = 64;
    }
    load_tile_config(config);
  }

  // Two tiles of queries against two of keys at a time. Keys after `last` are computed too; softmax masks them.
  static void scores(const AttentionBlock& b, int first, int last) {
    const int dim = b.job.head_dim;
    constexpr int kStride = kKeyBlock * sizeof(float);
    const int64_t block = b.job.row_of(first);
    for (int half = 0; half < kKeyBlock && first + half <= last; half += kKeyRun) {
      const auto* keys = static_cast<const uint16_t*>(b.job.keys) + (block + half) * dim;
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int d = 0; d < dim; d += 32) {
        _tile_loadd(4, b.queries16 + d, dim * 2);
        _tile_loadd(6, keys + d * kKeyPanel, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, keys + (dim + d) * kKeyPanel, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, b.queries16 + 16 * dim + d, dim * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, b.scores + half, kStride);
      _tile_stored(1, b.scores + half + 16, kStride);
      _tile_stored(2, b.scores + 16 * kKeyBlock + half, kStride);
      _tile_stored(3, b.scores + 16 * kKeyBlock + half + 16, kStride);
    }
  }

  static void values(const AttentionBlock& b, int first, int last) {
    Bfloat16Attention::round_probabilities(b);
    const auto* values = static_cast<const uint16_t*>(b.job.values) + b.job.row_of(first) * b.value_stride;
    const int64_t stride = b.value_stride * sizeof(float);
    for (int64_t column = 0; column < b.value_stride; column += 16) {
      float* accumulator = b.accumulator + column;
      _tile_loadd(0, accumulator, stride);
      _tile_loadd(1, accumulator + 16 * b.value_stride, stride);
      for (int k = 0; k < kKeyBlock && first + k <= last; k += 32) {
        _tile_loadd(6, values + (k / 2 * b.value_stride + column) * 2, stride);
        _tile_loadd(4, b.probabilities16 + k, kKeyBlock * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, b.probabilities16 + 16 * kKeyBlock + k, kKeyBlock * 2);
        _tile_dpbf16ps(1, 5, 6);
      }
      _tile_stored(0, accumulator, stride);
      _tile_stored(1, accumulator + 16 * b.value_stride, stride);
    }
  }
};

inline void attend_amx(const AttentionJob& job) {
  if (!AmxAttention::fits(job)) return attend<Bfloat16Attention>(job);
  attend<AmxAttention>(job);
  _tile_release();
}

}  // namespace estream::ESTREAM_VARIANT
