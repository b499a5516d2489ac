// Attention in bfloat16: products multiply bfloat16 numbers; sums, softmax and scaling are float32. Rows of keys and values
// that no token has written must be finite, since the products include them with a probability of zero.
#pragma once
#include "kernels/attention_rows.inl.h"

namespace estream::ESTREAM_VARIANT {

// 32 neighbouring floats as bfloat16, rounded to nearest even.
inline __m512i to_bf16(const float* p) { return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(p + 16), _mm512_loadu_ps(p)); }

// n floats as bfloat16; n is even.
inline void to_bf16(const float* from, int n, uint16_t* to) {
  int i = 0;
  for (; i + 32 <= n; i += 32) _mm512_storeu_si512(to + i, to_bf16(from + i));
  if (i < n) {
    float rest[32] = {};
    for (int k = i; k < n; k++) rest[k - i] = from[k];
    _mm512_mask_storeu_epi16(to + i, (1u << (n - i)) - 1, to_bf16(rest));
  }
}

inline __m512 dot2(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

inline __m512i broadcast2(const uint16_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return _mm512_set1_epi32(word);
}

struct Bfloat16Attention {
  static void prepare(const AttentionBlock& b) {
    const AttentionJob& job = b.job;
    for (int r = 0; r < job.rows; r++)
      to_bf16(job.queries + r * job.query_stride, job.head_dim, b.queries16 + r * job.head_dim);
    // AMX computes all kQueryBlock rows, so those without a query must hold numbers.
    for (int i = job.rows * job.head_dim; i < kQueryBlock * job.head_dim; i++) b.queries16[i] = 0;
    for (int i = job.rows * kKeyBlock; i < kQueryBlock * kKeyBlock; i++) b.probabilities16[i] = 0;
  }

  template <int R>
  static void score_rows(const AttentionBlock& b, int row, const uint16_t* keys, float* scores) {
    const int dim = b.job.head_dim;
    __m512 sum[R][2];
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int d = 0; d < dim; d += 2) {
      const __m512i k0 = _mm512_loadu_si512(keys + d * kKeyPanel);
      const __m512i k1 = _mm512_loadu_si512(keys + (dim + d) * kKeyPanel);
      for (int r = 0; r < R; r++) {
        const __m512i a = broadcast2(b.queries16 + (row + r) * dim + d);
        sum[r][0] = dot2(sum[r][0], a, k0);
        sum[r][1] = dot2(sum[r][1], a, k1);
      }
    }
    for (int r = 0; r < R; r++) {
      _mm512_storeu_ps(scores + r * kKeyBlock, sum[r][0]);
      _mm512_storeu_ps(scores + r * kKeyBlock + 16, sum[r][1]);
    }
  }

  static void scores(const AttentionBlock& b, int first, int last) {
    const int64_t block = b.job.row_of(first);
    for (int half = 0; half < kKeyBlock && first + half <= last; half += kKeyRun) {
      const auto* keys = static_cast<const uint16_t*>(b.job.keys) + (block + half) * b.job.head_dim;
      int r = 0;
      for (; r + 8 <= b.job.rows; r += 8) score_rows<8>(b, r, keys, b.scores + r * kKeyBlock + half);
      for (; r < b.job.rows; r++) score_rows<1>(b, r, keys, b.scores + r * kKeyBlock + half);
    }
  }

  static void round_probabilities(const AttentionBlock& b) {
    for (int i = 0; i < b.job.rows * kKeyBlock; i += 32) _mm512_storeu_si512(b.probabilities16 + i, to_bf16(b.scores + i));
  }

  template <int R, int V>
  static void value_tile(const AttentionBlock& b, int row, const uint16_t* values, int pairs, int64_t column) {
    float* accumulator = b.accumulator + row * b.value_stride + column;
    __m512 acc[R][V];
    for (int r = 0; r < R; r++)
      for (int v = 0; v < V; v++) acc[r][v] = _mm512_loadu_ps(accumulator + r * b.value_stride + 16 * v);
    for (int k = 0; k < pairs; k++) {
      __m512i w[V];
      for (int v = 0; v < V; v++) w[v] = _mm512_loadu_si512(values + (k * b.value_stride + column + 16 * v) * 2);
      for (int r = 0; r < R; r++) {
        const __m512i a = broadcast2(b.probabilities16 + (row + r) * kKeyBlock + 2 * k);
        for (int v = 0; v < V; v++) acc[r][v] = dot2(acc[r][v], a, w[v]);
      }
    }
    for (int r = 0; r < R; r++)
      for (int v = 0; v < V; v++) _mm512_storeu_ps(accumulator + r * b.value_stride + 16 * v, acc[r][v]);
  }

  template <int R>
  static void value_rows(const AttentionBlock& b, int row, const uint16_t* values, int pairs) {
    int64_t column = 0;
    for (; column + 64 <= b.value_stride; column += 64) value_tile<R, 4>(b, row, values, pairs, column);
    for (; column < b.value_stride; column += 16) value_tile<R, 1>(b, row, values, pairs, column);
  }

  static void values(const AttentionBlock& b, int first, int last) {
    round_probabilities(b);
    const auto* values = static_cast<const uint16_t*>(b.job.values) + b.job.row_of(first) * b.value_stride;
    const int keys = last - first + 1 < kKeyBlock ? last - first + 1 : kKeyBlock;
    int r = 0;
    for (; r + 6 <= b.job.rows; r += 6) value_rows<6>(b, r, values, (keys + 1) / 2);
    for (; r < b.job.rows; r++) value_rows<1>(b, r, values, (keys + 1) / 2);
  }

  // Keys [row / 16, head_dim / 2, 16, 2], values [row / 2, value_stride, 2].
  static void store(const KeyValueRow& kv) {
    uint16_t half[256];
    to_bf16(kv.key, kv.head_dim, half);
    auto* keys = static_cast<uint16_t*>(kv.keys) + kv.row / kKeyPanel * kKeyPanel * kv.head_dim + kv.row % kKeyPanel * 2;
    for (int d = 0; d < kv.head_dim; d += 2) __builtin_memcpy(keys + d * kKeyPanel, half + d, 2 * sizeof(uint16_t));
    const int value_stride = (kv.value_dim + 15) / 16 * 16;
    to_bf16(kv.value, kv.value_dim & ~1, half);
    if (kv.value_dim % 2) {
      const float last[2] = {kv.value[kv.value_dim - 1], 0.0f};
      to_bf16(last, 2, half + kv.value_dim - 1);
    }
    auto* values = static_cast<uint16_t*>(kv.values) + kv.row / 2 * 2 * value_stride + kv.row % 2;
    for (int i = 0; i < value_stride; i++) values[2 * i] = i < kv.value_dim ? half[i] : 0;
  }
};

}  // namespace estream::ESTREAM_VARIANT
