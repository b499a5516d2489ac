// Causal attention that never builds the matrix of scores: blocks of queries walk over blocks of keys, keeping a running
// maximum and sum per query. Source: T. Dao et al., FlashAttention (arXiv 2205.14135); online softmax: M. Milakov and
// N. Gimelshein (arXiv 1805.02867). Key blocks are counted from the sequence's start and a masked key adds an exact
// zero, so a query's result does not depend on the queries beside it.
//
// How scores and weighted values are computed is a parameter: in float32 here, in bfloat16 where the processor has it.
#pragma once
#include "float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

// The scratch of one job, cut up.
struct AttentionBlock {
  const AttentionJob& job;
  int64_t value_stride;
  float* scores;        // [kQueryBlock, kKeysAtOnce]
  float* sums;          // [kQueryBlock, value_stride]
  uint16_t* queries16;  // [kQueryBlock, head_dim], for bfloat16
  uint16_t* weights16;  // [kQueryBlock, kKeysAtOnce], for bfloat16
};

// Turns one row of scores into weights, masking keys after the query and before its window; updates maximum and sum, returns
// the factor by which what was summed before must shrink.
inline float softmax_row(float* scores, int first_key, int position, int window, float scale, float& maximum, float& total) {
  for (int k = position - first_key + 1 > 0 ? position - first_key + 1 : 0; k < kKeysAtOnce; k++) scores[k] = -1e30f;
  if (window > 0) {
    const int hidden = position - window + 1 - first_key;
    if (hidden >= kKeysAtOnce) {
      // A query beside this one sees these keys. Weights of zero leave this one's sums as they are.
      for (int k = 0; k < kKeysAtOnce; k++) scores[k] = 0.0f;
      return 1.0f;
    }
    for (int k = 0; k < hidden; k++) scores[k] = -1e30f;
  }
  const F16 s = set1(scale);
  F16 largest = load(scores);
  for (int k = 16; k < kKeysAtOnce; k += 16) largest = max(largest, load(scores + k));
  // Scaling is monotonic, and masked scores stay far below every other.
  const float block_maximum = largest_lane(largest) * scale;
  const float updated = block_maximum > maximum ? block_maximum : maximum;
  float shrink[16];
  store(shrink, exp(set1(maximum - updated)));
  F16 sum = zero();
  for (int k = 0; k < kKeysAtOnce; k += 16) {
    const F16 p = exp(load(scores + k) * s - set1(updated));
    store(scores + k, p);
    sum = sum + p;
  }
  maximum = updated;
  total = total * shrink[0] + sum_tree(sum);
  return shrink[0];
}

// MATH::prepare(block), MATH::scores(block, first, last) fills the scores of keys first .. first + 63 as far as `last`,
// MATH::values(block, first, last) adds the weighted values of those keys to the sums.
template <typename MATH>
inline void attend(const AttentionJob& job) {
  const int64_t value_stride = (job.value_dim + 15) / 16 * 16;
  float* scores = job.scratch;
  float* sums = scores + kQueryBlock * kKeysAtOnce;
  float* maximum = sums + kQueryBlock * value_stride;
  float* total = maximum + kQueryBlock;
  auto* weights16 = reinterpret_cast<uint16_t*>(total + kQueryBlock);
  const AttentionBlock block = {job, value_stride, scores, sums, weights16 + kQueryBlock * kKeysAtOnce, weights16};
  int earliest = job.positions[0], last = 0;
  for (int r = 0; r < job.rows; r++) {
    // A sink is a key with this score and a value of zero, read before all others.
    maximum[r] = job.sink ? *job.sink : -1e30f;
    total[r] = job.sink ? 1.0f : 0.0f;
    earliest = job.positions[r] < earliest ? job.positions[r] : earliest;
    last = job.positions[r] > last ? job.positions[r] : last;
  }
  const int begin = job.window > 0 && earliest >= job.window ? (earliest - job.window + 1) / kKeysAtOnce * kKeysAtOnce : 0;
  for (int64_t i = 0; i < kQueryBlock * value_stride; i++) sums[i] = 0.0f;
  MATH::prepare(block);
  for (int first = begin; first <= last; first += kKeysAtOnce) {
    MATH::scores(block, first, last);
    for (int r = 0; r < job.rows; r++) {
      const float shrink =
          softmax_row(scores + r * kKeysAtOnce, first, job.positions[r], job.window, job.scale, maximum[r], total[r]);
      if (shrink != 1.0f)
        for (int64_t i = 0; i < value_stride; i += 16) {
          float* s = sums + r * value_stride + i;
          store(s, load(s) * set1(shrink));
        }
    }
    MATH::values(block, first, last);
  }
  for (int r = 0; r < job.rows; r++) {
    const F16 inverse = set1(1.0f / total[r]);
    float* out = job.out + r * job.out_stride;
    int i = 0;
    for (; i + 16 <= job.value_dim; i += 16) store(out + i, load(sums + r * value_stride + i) * inverse);
    if (i < job.value_dim) store_part(out + i, load(sums + r * value_stride + i) * inverse, job.value_dim - i);
  }
}

// scores[R, 32] = q[R, D] . keys[D, 32], for two neighbouring key blocks.
template <int R>
inline void score_tile(const float* q, int64_t q_stride, const float* keys, int dim, float* scores) {
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
  for (int r = 0; r < R; r++) {
    store(scores + r * kKeysAtOnce, sum[r][0]);
    store(scores + r * kKeysAtOnce + 16, sum[r][1]);
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

struct Float32Attention {
  static void prepare(const AttentionBlock&) {}

  static void scores(const AttentionBlock& b, int first, int last) {
    const AttentionJob& job = b.job;
    for (int half = 0; half < kKeysAtOnce && first + half <= last; half += kKeyRun) {
      const float* keys = static_cast<const float*>(job.keys) + static_cast<int64_t>(first + half) * job.head_dim;
      int r = 0;
      for (; r + 8 <= job.rows; r += 8)
        score_tile<8>(job.queries + r * job.query_stride, job.query_stride, keys, job.head_dim,
                      b.scores + r * kKeysAtOnce + half);
      for (; r < job.rows; r++)
        score_tile<1>(job.queries + r * job.query_stride, job.query_stride, keys, job.head_dim,
                      b.scores + r * kKeysAtOnce + half);
    }
  }

  template <int R>
  static void value_rows(const AttentionBlock& b, int row, int first, int keys) {
    const float* values = static_cast<const float*>(b.job.values) + first * b.value_stride;
    const float* p = b.scores + row * kKeysAtOnce;
    float* sums = b.sums + row * b.value_stride;
    int64_t column = 0;
    for (; column + 64 <= b.value_stride; column += 64)
      value_tile<R, 4>(p, values + column, b.value_stride, keys, sums + column);
    for (; column < b.value_stride; column += 16) value_tile<R, 1>(p, values + column, b.value_stride, keys, sums + column);
  }

  static void values(const AttentionBlock& b, int first, int last) {
    const int keys = last - first + 1 < kKeysAtOnce ? last - first + 1 : kKeysAtOnce;
    int r = 0;
    for (; r + 6 <= b.job.rows; r += 6) value_rows<6>(b, r, first, keys);
    for (; r < b.job.rows; r++) value_rows<1>(b, r, first, keys);
  }

  // Keys [row / 16, head_dim, 16], values [row, value_stride].
  static void store(const KeyValueRow& kv) {
    auto* keys = static_cast<float*>(kv.keys) + kv.row / kKeyBlock * kKeyBlock * kv.head_dim + kv.row % kKeyBlock;
    for (int d = 0; d < kv.head_dim; d++) keys[d * kKeyBlock] = kv.key[d];
    const int64_t value_stride = (kv.value_dim + 15) / 16 * 16;
    auto* values = static_cast<float*>(kv.values) + kv.row * value_stride;
    for (int i = 0; i < value_stride; i++) values[i] = i < kv.value_dim ? kv.value[i] : 0.0f;
  }
};

}  // namespace estream::ESTREAM_VARIANT
