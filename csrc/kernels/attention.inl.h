// Causal attention that never builds the matrix of scores: blocks of queries walk over blocks of keys, keeping a running
// maximum and sum per query. Source: T. Dao et al., FlashAttention (arXiv 2205.14135); online softmax: M. Milakov and
// N. Gimelshein (arXiv 1805.02867). Key blocks are counted from the sequence's start and a masked key adds an exact
// zero, so a query's result does not depend on the queries beside it.
#pragma once
#include "float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

// scores[R, 32] = scale * q[R, D] . keys[D, 32], for two neighbouring key blocks.
template <int R>
inline void score_tile(const float* q, int64_t q_stride, const float* keys, int dim, float scale, float* scores) {
  const int64_t next = static_cast<int64_t>(dim) * kKeyBlock;
  F16 sum[R][2];
  for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = zero();
  for (int d = 0; d < dim; d++) {
    const F16 k0 = load(keys + d * kKeyBlock), k1 = load(keys + next + d * kKeyBlock);
    for (int r = 0; r < R; r++) {
      const F16 a = set1(q[r * q_stride + d]);
      sum[r][0] = fma(a, k0, sum[r][0]);
      sum[r][1] = fma(a, k1, sum[r][1]);
    }
  }
  const F16 s = set1(scale);
  for (int r = 0; r < R; r++) {
    store(scores + r * kKeysAtOnce, sum[r][0] * s);
    store(scores + r * kKeysAtOnce + 16, sum[r][1] * s);
  }
}

// sums[R, V * 16] += p[R, keys] . values[keys, V * 16].
template <int R, int V>
inline void value_tile(const float* p, const float* values, int64_t value_stride, int keys, float* sums) {
  F16 acc[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) acc[r][v] = load(sums + r * value_stride + 16 * v);
  for (int k = 0; k < keys; k++) {
    F16 w[V];
    for (int v = 0; v < V; v++) w[v] = load(values + k * value_stride + 16 * v);
    for (int r = 0; r < R; r++) {
      const F16 a = set1(p[r * kKeysAtOnce + k]);
      for (int v = 0; v < V; v++) acc[r][v] = fma(a, w[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(sums + r * value_stride + 16 * v, acc[r][v]);
}

template <int R>
inline void value_rows(const float* p, const float* values, int64_t value_stride, int keys, float* sums) {
  int64_t column = 0;
  for (; column + 64 <= value_stride; column += 64) value_tile<R, 4>(p, values + column, value_stride, keys, sums + column);
  for (; column < value_stride; column += 16) value_tile<R, 1>(p, values + column, value_stride, keys, sums + column);
}

// Turns one row of scores into weights, masking keys after the query; updates maximum and sum, returns the factor by
// which what was summed before must shrink.
inline float softmax_row(float* scores, int first_key, int position, float& maximum, float& total) {
  for (int k = position - first_key + 1 > 0 ? position - first_key + 1 : 0; k < kKeysAtOnce; k++) scores[k] = -1e30f;
  F16 largest = load(scores);
  for (int k = 16; k < kKeysAtOnce; k += 16) largest = max(largest, load(scores + k));
  const float block_maximum = largest_lane(largest);
  const float updated = block_maximum > maximum ? block_maximum : maximum;
  float shrink[16];
  store(shrink, exp(set1(maximum - updated)));
  F16 sum = zero();
  for (int k = 0; k < kKeysAtOnce; k += 16) {
    const F16 p = exp(load(scores + k) - set1(updated));
    store(scores + k, p);
    sum = sum + p;
  }
  maximum = updated;
  total = total * shrink[0] + sum_tree(sum);
  return shrink[0];
}

inline void attention(const AttentionJob& job) {
  const int64_t value_stride = (job.value_dim + 15) / 16 * 16;
  float* scores = job.scratch;
  float* sums = scores + kQueryBlock * kKeysAtOnce;
  float* maximum = sums + kQueryBlock * value_stride;
  float* total = maximum + kQueryBlock;
  int last = 0;
  for (int r = 0; r < job.rows; r++) {
    maximum[r] = -1e30f;
    total[r] = 0.0f;
    last = job.positions[r] > last ? job.positions[r] : last;
  }
  for (int64_t i = 0; i < job.rows * value_stride; i++) sums[i] = 0.0f;
  for (int first = 0; first <= last; first += kKeysAtOnce) {
    for (int half = 0; half < kKeysAtOnce && first + half <= last; half += kKeyRun) {
      const float* keys = job.keys + static_cast<int64_t>(first + half) * job.head_dim;
      int r = 0;
      for (; r + 8 <= job.rows; r += 8)
        score_tile<8>(job.queries + r * job.query_stride, job.query_stride, keys, job.head_dim, job.scale,
                      scores + r * kKeysAtOnce + half);
      for (; r < job.rows; r++)
        score_tile<1>(job.queries + r * job.query_stride, job.query_stride, keys, job.head_dim, job.scale,
                      scores + r * kKeysAtOnce + half);
    }
    for (int r = 0; r < job.rows; r++) {
      const float shrink = softmax_row(scores + r * kKeysAtOnce, first, job.positions[r], maximum[r], total[r]);
      if (shrink != 1.0f)
        for (int64_t i = 0; i < value_stride; i += 16) {
          float* s = sums + r * value_stride + i;
          store(s, load(s) * set1(shrink));
        }
    }
    const int keys = last - first + 1 < kKeysAtOnce ? last - first + 1 : kKeysAtOnce;
    const float* values = job.values + first * value_stride;
    int r = 0;
    for (; r + 6 <= job.rows; r += 6)
      value_rows<6>(scores + r * kKeysAtOnce, values, value_stride, keys, sums + r * value_stride);
    for (; r < job.rows; r++) value_rows<1>(scores + r * kKeysAtOnce, values, value_stride, keys, sums + r * value_stride);
  }
  for (int r = 0; r < job.rows; r++) {
    const F16 inverse = set1(1.0f / total[r]);
    float* out = job.out + r * job.out_stride;
    int i = 0;
    for (; i + 16 <= job.value_dim; i += 16) store(out + i, load(sums + r * value_stride + i) * inverse);
    if (i < job.value_dim) store_part(out + i, load(sums + r * value_stride + i) * inverse, job.value_dim - i);
  }
}

}  // namespace estream::ESTREAM_VARIANT
