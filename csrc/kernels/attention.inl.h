// Causal attention in float32 that never builds the matrix of scores: blocks of queries walk over blocks of keys, keeping a
// running maximum and sum per query. Source: T. Dao et al., FlashAttention (arXiv 2205.14135); online softmax: M. Milakov and
// N. Gimelshein (arXiv 1805.02867).
//
// Sixteen queries lie in a vector, so softmax needs no sum across lanes, and both products multiply a vector of queries with
// single elements of neighbouring addresses: of a key, then of a value. Lanes never meet, key blocks are counted from the
// sequence's start, and a masked key adds an exact zero: a query's result does not depend on the queries beside it.
#pragma once
#include "float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

// Of scores, so far below all others that its weight is zero even beside the maximum that no key has raised yet.
constexpr float kMasked = -1e30f, kNoMaximum = -1e20f;
// Scores are computed for whole steps of keys.
constexpr int kKeyStep = 8;
static_assert(kKeyStep % kOuterScalars == 0 && kKeyStep % 4 == 0);

// The scratch of one job, cut up. Queries are the innermost dimension of all.
struct FloatAttention {
  const AttentionJob& job;
  int64_t value_stride;
  float* queries;  // [head_dim, kFloatQueryBlock]
  float* scores;   // [kKeysAtOnce, kFloatQueryBlock], then the weights
  float* sums;     // [value_stride, kFloatQueryBlock]
  float* maximum;  // [kFloatQueryBlock], of exponents of 2
  float* total;
  float* shrink;     // what the sums must be multiplied with when this block's values are added
  float* positions;  // exact: below 2^24
};

// Positions of the sixteen queries of a vector.
struct QueryRange {
  int earliest, last;
};

// 2^x for x <= 0 within 2 ulp; 0 below -125. The polynomial has the least largest relative error on [-1/2, 1/2] among those that
// are 1 at 0.
inline F16 exp2_of_negative(F16 x) {
  const F16 bounded = max(x, set1(-126.0f));
  const F16 n = round(bounded), r = bounded - n;
  F16 p = set1(1.3264727e-3f);
  p = fma(p, r, set1(9.6715130e-3f));
  p = fma(p, r, set1(5.5507336e-2f));
  p = fma(p, r, set1(2.4022242e-1f));
  p = fma(p, r, set1(6.9314700e-1f));
  p = fma(p, r, set1(1.0f));
  return keep_where_greater(x, set1(-125.0f), scale_by_power(p, n));
}

// out[K, V * 16] = keys[K] . queries[V * 16], both with the head's dimensions outermost.
template <int K, int V>
inline void score_tile(const float* keys, const float* queries, int dim, float* out) {
  F16 sum[K][V];
  for (int k = 0; k < K; k++)
    for (int v = 0; v < V; v++) sum[k][v] = zero();
  for (int d = 0; d < dim; d++) {
    F16 q[V];
    for (int v = 0; v < V; v++) q[v] = load(queries + d * kFloatQueryBlock + 16 * v);
    for (int k = 0; k < K; k++) {
      const F16 a = set1(keys[d * kKeyBlock + k]);
      for (int v = 0; v < V; v++) sum[k][v] = fma(a, q[v], sum[k][v]);
    }
  }
  for (int k = 0; k < K; k++)
    for (int v = 0; v < V; v++) store(out + k * kFloatQueryBlock + 16 * v, sum[k][v]);
}

// sums[C, V * 16] = sums * shrink[V * 16] + values[keys, C] . weights[keys, V * 16]. A run of keys lies in `values` with 16
// columns of each key; the next run is `next` behind it.
template <int C, int V>
inline void value_tile(const float* values, int64_t next, const float* weights, int keys, const float* shrink, float* sums) {
  F16 acc[C][V];
  for (int c = 0; c < C; c++)
    for (int v = 0; v < V; v++) acc[c][v] = load(sums + c * kFloatQueryBlock + 16 * v) * load(shrink + 16 * v);
  for (int run = 0; run < keys; run += kKeyRun, values += next, weights += kKeyRun * kFloatQueryBlock)
    for (int k = 0; k < kKeyRun && run + k < keys; k++) {
      F16 w[V];
      for (int v = 0; v < V; v++) w[v] = load(weights + k * kFloatQueryBlock + 16 * v);
      for (int c = 0; c < C; c++) {
        const F16 a = set1(values[k * 16 + c]);
        for (int v = 0; v < V; v++) acc[c][v] = fma(a, w[v], acc[c][v]);
      }
    }
  for (int c = 0; c < C; c++)
    for (int v = 0; v < V; v++) store(sums + c * kFloatQueryBlock + 16 * v, acc[c][v]);
}

// The scores of the queries of V vectors from `lane` on, with `keys` keys from `first` on.
template <int V>
inline void score_vectors(const FloatAttention& a, int lane, int first, int keys) {
  const int dim = a.job.head_dim;
  const float* rows = static_cast<const float*>(a.job.keys) + static_cast<int64_t>(first) * dim;
  for (int k = 0; k < keys; k += kOuterScalars)
    score_tile<kOuterScalars, V>(rows + k / kKeyBlock * kKeyBlock * dim + k % kKeyBlock, a.queries + lane, dim,
                                 a.scores + k * kFloatQueryBlock + lane);
}

template <int V>
inline void value_vectors(const FloatAttention& a, int lane, int first, int keys) {
  const float* values = static_cast<const float*>(a.job.values) + first * a.value_stride;
  for (int64_t c = 0; c < a.value_stride; c += kOuterScalars)
    value_tile<kOuterScalars, V>(values + c / 16 * 16 * kKeyRun + c % 16, kKeyRun * a.value_stride, a.scores + lane, keys,
                                 a.shrink + lane, a.sums + c * kFloatQueryBlock + lane);
}

// Hides keys after a query and before its window. `keys` scores of sixteen queries.
inline void mask_scores(const FloatAttention& a, int lane, int first, int keys) {
  const F16 behind = load(a.positions + lane) + set1(1.0f), masked = set1(kMasked);
  const F16 begin = behind - set1(static_cast<float>(a.job.window) + 0.5f);
  for (int k = 0; k < keys; k++) {
    float* scores = a.scores + k * kFloatQueryBlock + lane;
    const F16 key = set1(static_cast<float>(first + k));
    F16 s = select_greater(behind, key, load(scores), masked);
    if (a.job.window > 0) s = select_greater(key, begin, s, masked);
    store(scores, s);
  }
}

// Turns the scores of sixteen queries with `keys` keys, whole steps, into weights; updates maximum, total and shrink.
inline void softmax(const FloatAttention& a, int lane, int keys) {
  float* scores = a.scores + lane;
  F16 largest[4], sum[4];
  for (int i = 0; i < 4; i++) largest[i] = load(scores + i * kFloatQueryBlock);
  for (int k = 4; k < keys; k += 4)
    for (int i = 0; i < 4; i++) largest[i] = max(largest[i], load(scores + (k + i) * kFloatQueryBlock));
  const F16 factor = set1(a.job.scale * 1.44269504f);
  const F16 before = load(a.maximum + lane);
  // Scaling is monotonic, and masked scores stay far below every other.
  const F16 now = max(max(max(largest[0], largest[1]), max(largest[2], largest[3])) * factor, before);
  const F16 minus = zero() - now, shrink = exp2_of_negative(before - now);
  for (int i = 0; i < 4; i++) sum[i] = zero();
  for (int k = 0; k < keys; k += 4)
    for (int i = 0; i < 4; i++) {
      float* at = scores + (k + i) * kFloatQueryBlock;
      const F16 p = exp2_of_negative(fma(load(at), factor, minus));
      store(at, p);
      sum[i] = sum[i] + p;
    }
  store(a.maximum + lane, now);
  store(a.shrink + lane, shrink);
  store(a.total + lane, fma(load(a.total + lane), shrink, (sum[0] + sum[2]) + (sum[1] + sum[3])));
}

// One block of keys for the queries of V vectors.
template <int V>
inline void attend_vectors(const FloatAttention& a, int lane, const QueryRange* ranges, int first) {
  int last = ranges[0].last;
  for (int v = 1; v < V; v++) last = ranges[v].last > last ? ranges[v].last : last;
  if (first > last) return;
  const int keys = last - first + 1 < kKeysAtOnce ? last - first + 1 : kKeysAtOnce;
  const int padded = (keys + kKeyStep - 1) / kKeyStep * kKeyStep;
  score_vectors<V>(a, lane, first, padded);
  for (int v = 0; v < V; v++) {
    const bool window_begins = a.job.window > 0 && first <= ranges[v].last - a.job.window;
    if (first + padded > ranges[v].earliest + 1 || window_begins) mask_scores(a, lane + 16 * v, first, padded);
    softmax(a, lane + 16 * v, padded);
  }
  value_vectors<V>(a, lane, first, keys);
}

// Sixteen columns of sixteen queries, divided by their totals.
inline void finish_columns(const FloatAttention& a, int lane, int column) {
  const AttentionJob& job = a.job;
  const F16 inverse = set1(1.0f) / load(a.total + lane);
  F16 rows[16];
  for (int c = 0; c < 16; c++) rows[c] = load(a.sums + (column + c) * kFloatQueryBlock + lane) * inverse;
  transpose(rows);
  const int columns = job.value_dim - column;
  for (int r = 0; r < 16 && lane + r < job.rows; r++) {
    float* out = job.out + (lane + r) * job.out_stride + column;
    if (columns >= 16)
      store(out, rows[r]);
    else
      store_part(out, rows[r], columns);
  }
}

// Sixteen dimensions of sixteen queries; lanes without a query are zero.
inline void turn_queries(const FloatAttention& a, int lane, int dim) {
  const AttentionJob& job = a.job;
  const int dims = job.head_dim - dim < 16 ? job.head_dim - dim : 16;
  F16 rows[16];
  for (int r = 0; r < 16; r++) {
    const float* query = job.queries + (lane + r) * job.query_stride + dim;
    rows[r] = lane + r >= job.rows ? zero() : dims == 16 ? load(query) : load_part(query, dims);
  }
  transpose(rows);
  for (int d = 0; d < dims; d++) store(a.queries + (dim + d) * kFloatQueryBlock + lane, rows[d]);
}

// Prepares sixteen queries; returns where they are. Lanes without a query repeat the last one's position.
inline QueryRange begin_vector(const FloatAttention& a, int lane) {
  const AttentionJob& job = a.job;
  for (int d = 0; d < job.head_dim; d += 16) turn_queries(a, lane, d);
  for (int64_t c = 0; c < a.value_stride; c++) store(a.sums + c * kFloatQueryBlock + lane, zero());
  // A sink is a key with this score and a value of zero, read before all others.
  store(a.maximum + lane, set1(job.sink ? *job.sink * 1.44269504f : kNoMaximum));
  store(a.total + lane, set1(job.sink ? 1.0f : 0.0f));
  QueryRange range = {job.positions[lane], job.positions[lane]};
  for (int r = lane; r < lane + 16; r++) {
    const int position = job.positions[r < job.rows ? r : job.rows - 1];
    a.positions[r] = static_cast<float>(position);
    range.earliest = position < range.earliest ? position : range.earliest;
    range.last = position > range.last ? position : range.last;
  }
  return range;
}

inline void attend_floats(const AttentionJob& job) {
  const int64_t value_stride = (job.value_dim + 15) / 16 * 16;
  float* scores = job.scratch + job.head_dim * kFloatQueryBlock;
  float* sums = scores + kKeysAtOnce * kFloatQueryBlock;
  float* state = sums + value_stride * kFloatQueryBlock;
  const FloatAttention a = {job, value_stride, job.scratch, scores, sums, state, state + kFloatQueryBlock,
                            state + 2 * kFloatQueryBlock, state + 3 * kFloatQueryBlock};
  QueryRange ranges[kFloatQueryBlock / 16], all = {job.positions[0], job.positions[0]};
  for (int lane = 0; lane < job.rows; lane += 16) {
    const QueryRange range = ranges[lane / 16] = begin_vector(a, lane);
    all.earliest = range.earliest < all.earliest ? range.earliest : all.earliest;
    all.last = range.last > all.last ? range.last : all.last;
  }
  const int begin =
      job.window > 0 && all.earliest >= job.window ? (all.earliest - job.window + 1) / kKeysAtOnce * kKeysAtOnce : 0;
  for (int first = begin; first <= all.last; first += kKeysAtOnce) {
    int lane = 0;
    for (; lane + 16 * (kOuterVectors - 1) < job.rows; lane += 16 * kOuterVectors)
      attend_vectors<kOuterVectors>(a, lane, ranges + lane / 16, first);
    for (; lane < job.rows; lane += 16) attend_vectors<1>(a, lane, ranges + lane / 16, first);
  }
  for (int lane = 0; lane < job.rows; lane += 16)
    for (int c = 0; c < job.value_dim; c += 16) finish_columns(a, lane, c);
}

// Keys [row / 16, head_dim, 16], values [row / 32, value_stride / 16, 32, 16].
inline void store_floats(const KeyValueRow& kv) {
  auto* keys = static_cast<float*>(kv.keys) + kv.row / kKeyBlock * kKeyBlock * kv.head_dim + kv.row % kKeyBlock;
  for (int d = 0; d < kv.head_dim; d++) keys[d * kKeyBlock] = kv.key[d];
  const int64_t value_stride = (kv.value_dim + 15) / 16 * 16;
  auto* values = static_cast<float*>(kv.values) + kv.row / kKeyRun * kKeyRun * value_stride + kv.row % kKeyRun * 16;
  for (int c = 0; c < value_stride; c += 16) {
    const int n = kv.value_dim - c;
    store(values + c * kKeyRun, n >= 16 ? load(kv.value + c) : load_part(kv.value + c, n));
  }
}

}  // namespace estream::ESTREAM_VARIANT
