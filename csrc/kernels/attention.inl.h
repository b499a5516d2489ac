// Causal attention in float32 that never builds the matrix of scores: blocks of queries walk over blocks of keys, keeping a
// running maximum and sum per query. Source: T. Dao et al., FlashAttention (arXiv 2205.14135); online softmax: M. Milakov and
// N. Gimelshein (arXiv 1805.02867).
//
// Sixteen queries lie in a vector, so softmax needs no sum across lanes, and both products multiply a vector of queries with
// single elements of neighbouring addresses: of a key, then of a value. Lanes never meet, key blocks are counted from the
// sequence's start, and a masked key adds an exact zero: a query's result does not depend on the queries beside it.
#pragma once
#include <utility>

#include "kernels/float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

// Of scores, so far below all others that its weight is zero even beside the maximum that no key has raised yet.
constexpr float kMasked = -1e30f, kNoMaximum = -1e20f;
constexpr float kLog2E = 1.44269504f;

// Queries that are multiplied together; small enough for their scratch to lie in the first-level cache.
constexpr int kQueryLanes = 16 * kOuterVectors;
static_assert(kOuterVectors <= 2);

// The scratch, cut up. Queries are the innermost dimension of all.
struct QueryLanes {
  const AttentionJob* job;
  int64_t value_stride;
  int first;                                         // row of the job
  int earliest[kOuterVectors], last[kOuterVectors];  // positions of each vector
  float* scores;                                     // [kKeysAtOnce, kQueryLanes], then the weights
  float* queries;                                    // [head_dim, kQueryLanes]
  float* sums;                                       // [value_stride, kQueryLanes]
  float* maximum;                                    // [kQueryLanes], of exponents of 2
  float* total;
  float* shrink;     // what the sums must be multiplied with when a block's values are added
  float* positions;  // exact: below 2^24
};

// 2^x for x <= 0 within 2 ulp; 0 below -125. The polynomial has the least largest relative error on [-1/2, 1/2] among those
// that are 1 at 0.
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

// Cuts sixteen scalars into tiles that the registers hold, as even as can be; a tile is where it begins and its indices.
template <int BEGIN = 0, typename Function>
ESTREAM_INLINE void each_tile(Function function) {
  if constexpr (BEGIN < 16) {
    constexpr int kTiles = (16 - BEGIN + kOuterScalars - 1) / kOuterScalars, kSize = (16 - BEGIN + kTiles - 1) / kTiles;
    function(BEGIN, std::make_index_sequence<kSize>());
    each_tile<BEGIN + kSize>(function);
  }
}

template <int V>
ESTREAM_INLINE void clear_vectors(F16 (&to)[V]) {
  to[0] = zero();
  if constexpr (V == 2) to[1] = zero();
}

template <int V>
ESTREAM_INLINE void load_vectors(F16 (&to)[V], const float* from) {
  to[0] = load(from);
  if constexpr (V == 2) to[1] = load(from + 16);
}

template <int V>
ESTREAM_INLINE void store_vectors(float* to, const F16 (&from)[V]) {
  store(to, from[0]);
  if constexpr (V == 2) store(to + 16, from[1]);
}

template <int V>
ESTREAM_INLINE void add_product(F16 (&sum)[V], float scalar, const F16 (&vectors)[V]) {
  const F16 a = set1(scalar);
  sum[0] = fma(a, vectors[0], sum[0]);
  if constexpr (V == 2) sum[1] = fma(a, vectors[1], sum[1]);
}

// sums[K, V * 16] = scores of K keys, whose dimensions lie kKeyBlock apart. Packs instead of loops over keys: GCC 12 leaves
// sums in memory otherwise.
template <int V, size_t... K>
ESTREAM_NOINLINE void score_tile(const float* keys, const float* queries, int dim, float* scores, std::index_sequence<K...>) {
  F16 sum[sizeof...(K)][V];
  (clear_vectors(sum[K]), ...);
  for (int d = 0; d < dim; d++) {
    F16 q[V];
    load_vectors(q, queries + d * kQueryLanes);
    __builtin_prefetch(keys + (d + dim) * kKeyBlock);
    (add_product(sum[K], keys[d * kKeyBlock + K], q), ...);
  }
  (store_vectors(scores + K * kQueryLanes, sum[K]), ...);
}

// sums[C, V * 16] = sums * shrink[V * 16] + values[keys, C] . weights[keys, V * 16]. A run of keys lies in `values` with 16
// columns of each key; the next run is `next` behind it.
template <int V, size_t... C>
ESTREAM_NOINLINE void value_tile(const float* values, int64_t next, const float* weights, int keys, const float* shrink,
                                 float* sums, std::index_sequence<C...>) {
  F16 sum[sizeof...(C)][V], factors[V];
  load_vectors(factors, shrink);
  (load_vectors(sum[C], sums + C * kQueryLanes), ...);
  ((sum[C][0] = sum[C][0] * factors[0]), ...);
  if constexpr (V == 2) ((sum[C][1] = sum[C][1] * factors[1]), ...);
  for (int run = 0; run < keys; run += kKeyRun, values += next, weights += kKeyRun * kQueryLanes)
    for (int k = 0; k < kKeyRun && run + k < keys; k++) {
      F16 w[V];
      load_vectors(w, weights + k * kQueryLanes);
      __builtin_prefetch(values + (k + kKeyRun) * 16);
      (add_product(sum[C], values[k * 16 + C], w), ...);
    }
  (store_vectors(sums + C * kQueryLanes, sum[C]), ...);
}

// The scores of the queries with `keys` keys from `first` on, whole blocks.
template <int V>
inline void score_keys(const QueryLanes& q, int first, int keys) {
  const int dim = q.job->head_dim;
  const float* block = static_cast<const float*>(q.job->keys) + static_cast<int64_t>(first) * dim;
  for (int k = 0; k < keys; k += kKeyBlock, block += kKeyBlock * dim)
    each_tile([&](int tile, auto indices) __attribute__((always_inline)) {
      score_tile<V>(block + tile, q.queries, dim, q.scores + (k + tile) * kQueryLanes, indices);
    });
}

template <int V>
inline void add_values(const QueryLanes& q, int first, int keys) {
  const float* columns = static_cast<const float*>(q.job->values) + first * q.value_stride;
  for (int64_t c = 0; c < q.value_stride; c += 16, columns += 16 * kKeyRun)
    each_tile([&](int tile, auto indices) __attribute__((always_inline)) {
      value_tile<V>(columns + tile, kKeyRun * q.value_stride, q.scores, keys, q.shrink, q.sums + (c + tile) * kQueryLanes,
                    indices);
    });
}

// Hides keys after a query and before its window, for one vector of queries.
inline void mask_scores(const QueryLanes& q, int lane, int first, int keys) {
  const F16 behind = load(q.positions + lane) + set1(1.0f), masked = set1(kMasked);
  const F16 begin = behind - set1(static_cast<float>(q.job->window) + 0.5f);
  for (int k = 0; k < keys; k++) {
    float* scores = q.scores + k * kQueryLanes + lane;
    const F16 key = set1(static_cast<float>(first + k));
    F16 s = select_greater(behind, key, load(scores), masked);
    if (q.job->window > 0) s = select_greater(key, begin, s, masked);
    store(scores, s);
  }
}

// Turns the scores of one vector of queries with `keys` keys, whole blocks, into weights; updates maximum, total and shrink.
ESTREAM_NOINLINE inline void softmax(const QueryLanes& q, int lane, int keys) {
  float* scores = q.scores + lane;
  F16 largest[4], sum[4];
  for (int i = 0; i < 4; i++) largest[i] = load(scores + i * kQueryLanes);
  for (int k = 4; k < keys; k += 4)
    for (int i = 0; i < 4; i++) largest[i] = max(largest[i], load(scores + (k + i) * kQueryLanes));
  const F16 factor = set1(q.job->scale * kLog2E), before = load(q.maximum + lane);
  // Scaling is monotonic, and masked scores stay far below every other.
  const F16 now = max(max(max(largest[0], largest[1]), max(largest[2], largest[3])) * factor, before);
  const F16 minus = zero() - now, shrink = exp2_of_negative(before - now);
  for (int i = 0; i < 4; i++) sum[i] = zero();
  for (int k = 0; k < keys; k += 4)
    for (int i = 0; i < 4; i++) {
      float* at = scores + (k + i) * kQueryLanes;
      const F16 p = exp2_of_negative(fma(load(at), factor, minus));
      store(at, p);
      sum[i] = sum[i] + p;
    }
  store(q.maximum + lane, now);
  store(q.shrink + lane, shrink);
  store(q.total + lane, fma(load(q.total + lane), shrink, (sum[0] + sum[2]) + (sum[1] + sum[3])));
}

// One block of keys, up to `last`, for queries in V vectors.
template <int V>
inline void attend_block(const QueryLanes& q, int first, int last) {
  const int keys = last - first + 1 < kKeysAtOnce ? last - first + 1 : kKeysAtOnce;
  const int padded = (keys + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  score_keys<V>(q, first, padded);
  for (int v = 0; v < V; v++) {
    const bool window_begins = q.job->window > 0 && first <= q.last[v] - q.job->window;
    if (first + padded > q.earliest[v] + 1 || window_begins) mask_scores(q, 16 * v, first, padded);
    softmax(q, 16 * v, padded);
  }
  add_values<V>(q, first, keys);
}

// Sixteen dimensions of one vector of queries; lanes without a query are zero.
inline void turn_queries(const QueryLanes& q, int lane, int dim) {
  const AttentionJob& job = *q.job;
  const int dims = job.head_dim - dim < 16 ? job.head_dim - dim : 16;
  F16 rows[16];
  for (int r = 0; r < 16; r++) {
    const int row = q.first + lane + r;
    const float* query = job.queries + row * job.query_stride + dim;
    rows[r] = row >= job.rows ? zero() : dims == 16 ? load(query) : load_part(query, dims);
  }
  transpose(rows);
  for (int d = 0; d < dims; d++) store(q.queries + (dim + d) * kQueryLanes + lane, rows[d]);
}

inline void begin_vector(QueryLanes& q, int v) {
  const AttentionJob& job = *q.job;
  const int lane = 16 * v, row = q.first + lane;
  for (int d = 0; d < job.head_dim; d += 16) turn_queries(q, lane, d);
  for (int64_t c = 0; c < q.value_stride; c++) store(q.sums + c * kQueryLanes + lane, zero());
  // A sink is a key with this score and a value of zero, read before all others.
  store(q.maximum + lane, set1(job.sink ? *job.sink * kLog2E : kNoMaximum));
  store(q.total + lane, set1(job.sink ? 1.0f : 0.0f));
  q.earliest[v] = q.last[v] = job.positions[row];
  for (int r = 0; r < 16; r++) {
    // Lanes without a query repeat the last one's position.
    const int position = job.positions[row + r < job.rows ? row + r : job.rows - 1];
    q.positions[lane + r] = static_cast<float>(position);
    q.earliest[v] = position < q.earliest[v] ? position : q.earliest[v];
    q.last[v] = position > q.last[v] ? position : q.last[v];
  }
}

// Sixteen columns of one vector of queries, divided by their totals.
inline void finish_columns(const QueryLanes& q, int lane, int column) {
  const AttentionJob& job = *q.job;
  const F16 inverse = set1(1.0f) / load(q.total + lane);
  F16 rows[16];
  for (int c = 0; c < 16; c++) rows[c] = load(q.sums + (column + c) * kQueryLanes + lane) * inverse;
  transpose(rows);
  const int columns = job.value_dim - column;
  for (int r = 0; r < 16 && q.first + lane + r < job.rows; r++) {
    float* out = job.out + (q.first + lane + r) * job.out_stride + column;
    if (columns >= 16)
      store(out, rows[r]);
    else
      store_part(out, rows[r], columns);
  }
}

inline QueryLanes lanes_of(const AttentionJob& job) {
  const int64_t value_stride = (job.value_dim + 15) / 16 * 16;
  float* scores = job.scratch;
  float* queries = scores + kKeysAtOnce * kQueryLanes;
  float* sums = queries + job.head_dim * kQueryLanes;
  float* state = sums + value_stride * kQueryLanes;
  return {&job,
          value_stride,
          0,
          {},
          {},
          scores,
          queries,
          sums,
          state,
          state + kQueryLanes,
          state + 2 * kQueryLanes,
          state + 3 * kQueryLanes};
}

template <int V>
inline void attend_lanes(QueryLanes& q) {
  for (int v = 0; v < V; v++) begin_vector(q, v);
  int earliest = q.earliest[0], last = q.last[0];
  if constexpr (V == 2) {
    earliest = q.earliest[1] < earliest ? q.earliest[1] : earliest;
    last = q.last[1] > last ? q.last[1] : last;
  }
  const int hidden = q.job->window > 0 ? earliest - q.job->window + 1 : 0;
  for (int first = hidden > 0 ? hidden / kKeysAtOnce * kKeysAtOnce : 0; first <= last; first += kKeysAtOnce)
    attend_block<V>(q, first, last);
  for (int v = 0; v < V; v++)
    for (int c = 0; c < q.job->value_dim; c += 16) finish_columns(q, 16 * v, c);
}

inline void attend_floats(const AttentionJob& job) {
  QueryLanes q = lanes_of(job);
  for (; q.first + 16 * (kOuterVectors - 1) < job.rows; q.first += kQueryLanes) attend_lanes<kOuterVectors>(q);
  for (; q.first < job.rows; q.first += 16) attend_lanes<1>(q);
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
