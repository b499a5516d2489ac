// Causal attention in float32 by FlashAttention (T. Dao et al., arXiv 2205.14135) with online softmax (M. Milakov and
// N. Gimelshein, arXiv 1805.02867): a tile of queries walks over blocks of keys and keeps a row max, a row sum and an
// accumulator for each query. The matrix of scores never exists as a whole.
//
// A SIMD vector holds one element of sixteen queries. So softmax needs no reduction across a vector, and both products
// multiply a vector of queries by scalars that lie side by side: elements of a key, then of a value.
//
// A query's result does not depend on the queries beside it: no operation mixes the elements of a vector, key blocks are
// counted from the sequence's start, and a masked key adds an exact zero.
#pragma once
#include "kernels/register_tile.inl.h"

namespace estream::ESTREAM_VARIANT {

// The score of a masked key. It lies so far below kInitialMax that its probability is an exact zero even before any key has
// raised the row max.
constexpr float kMasked = -1e30f, kInitialMax = -1e20f;
constexpr float kLog2E = 1.44269504f;

// Queries in a tile. Their scratch fits into the L1 cache.
constexpr int kQueryTile = 16 * kOuterVectors;
static_assert(kOuterVectors <= 2);

// The scratch of a job, divided. Queries are the innermost dimension of every array.
struct QueryTile {
  const AttentionJob* job;
  int64_t value_stride;
  int first;                                         // the tile's first row of the job
  int earliest[kOuterVectors], last[kOuterVectors];  // positions of each vector
  float* scores;                                     // [kKeyBlock, kQueryTile]; softmax turns them into probabilities
  float* queries;                                    // [head_dim, kQueryTile]
  float* accumulator;                                // [value_stride, kQueryTile]: probabilities times values, not yet divided
  float* row_max;                                    // [kQueryTile]: the largest score so far, as an exponent of 2
  float* row_sum;                                    // [kQueryTile]: the sum of the probabilities so far
  float* rescale;    // [kQueryTile]: multiplies the accumulator before a block's values are added
  float* positions;  // [kQueryTile]: exact, below 2^24
};

// 2^x for x <= 0 within 2 ulp; 0 below -125. The polynomial is the minimax one for the relative error on [-1/2, 1/2] among
// those that are 1 at 0.
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

// scores[K, V * 16] = K keys, whose dimensions lie kKeyPanel apart, times the queries. Parameter packs replace loops over
// keys, because GCC 12 keeps the sums in memory otherwise.
template <int V, size_t... K>
ESTREAM_NOINLINE void score_tile(const float* keys, const float* queries, int dim, float* scores, std::index_sequence<K...>) {
  F16 sum[sizeof...(K)][V];
  (clear_vectors(sum[K]), ...);
  for (int d = 0; d < dim; d++) {
    F16 q[V];
    load_vectors(q, queries + d * kQueryTile);
    __builtin_prefetch(keys + (d + dim) * kKeyPanel);
    (add_product(sum[K], keys[d * kKeyPanel + K], q), ...);
  }
  (store_vectors(scores + K * kQueryTile, sum[K]), ...);
}

// accumulator[C, V * 16] = accumulator * rescale[V * 16] + values[keys, C] . probabilities[keys, V * 16]. `values` holds 16
// columns of each of kKeyRun keys; the next kKeyRun keys follow `next` elements later.
template <int V, size_t... C>
ESTREAM_NOINLINE void value_tile(const float* values, int64_t next, const float* probabilities, int keys, const float* rescale,
                                 float* accumulator, std::index_sequence<C...>) {
  F16 sum[sizeof...(C)][V], factors[V];
  load_vectors(factors, rescale);
  (load_vectors(sum[C], accumulator + C * kQueryTile), ...);
  ((sum[C][0] = sum[C][0] * factors[0]), ...);
  if constexpr (V == 2) ((sum[C][1] = sum[C][1] * factors[1]), ...);
  for (int run = 0; run < keys; run += kKeyRun, values += next, probabilities += kKeyRun * kQueryTile)
    for (int k = 0; k < kKeyRun && run + k < keys; k++) {
      F16 w[V];
      load_vectors(w, probabilities + k * kQueryTile);
      __builtin_prefetch(values + (k + kKeyRun) * 16);
      (add_product(sum[C], values[k * 16 + C], w), ...);
    }
  (store_vectors(accumulator + C * kQueryTile, sum[C]), ...);
}

// The scores of the tile's queries with `keys` keys from `first` on; `keys` is a multiple of kKeyPanel.
template <int V>
inline void score_keys(const QueryTile& q, int first, int keys) {
  const int dim = q.job->head_dim;
  const float* block = static_cast<const float*>(q.job->keys) + q.job->row_of(first) * dim;
  for (int k = 0; k < keys; k += kKeyPanel, block += kKeyPanel * dim)
    each_tile([&](int tile, auto indices) __attribute__((always_inline)) {
      score_tile<V>(block + tile, q.queries, dim, q.scores + (k + tile) * kQueryTile, indices);
    });
}

template <int V>
inline void add_values(const QueryTile& q, int first, int keys) {
  const float* columns = static_cast<const float*>(q.job->values) + q.job->row_of(first) * q.value_stride;
  for (int64_t c = 0; c < q.value_stride; c += 16, columns += 16 * kKeyRun)
    each_tile([&](int tile, auto indices) __attribute__((always_inline)) {
      value_tile<V>(columns + tile, kKeyRun * q.value_stride, q.scores, keys, q.rescale,
                    q.accumulator + (c + tile) * kQueryTile, indices);
    });
}

// Masks the keys after a query and those before its window, for the vector of queries at `offset` in the tile.
inline void mask_scores(const QueryTile& q, int offset, int first, int keys) {
  const F16 end = load(q.positions + offset) + set1(1.0f), masked = set1(kMasked);
  const F16 begin = end - set1(static_cast<float>(q.job->window) + 0.5f);
  for (int k = 0; k < keys; k++) {
    float* scores = q.scores + k * kQueryTile + offset;
    const F16 key = set1(static_cast<float>(first + k));
    F16 s = select_greater(end, key, load(scores), masked);
    if (q.job->window > 0) s = select_greater(key, begin, s, masked);
    store(scores, s);
  }
}

// Online softmax for the vector of queries at `offset`: turns the scores of `keys` keys, a multiple of kKeyPanel, into
// probabilities. Updates row_max, row_sum and rescale.
ESTREAM_NOINLINE inline void softmax(const QueryTile& q, int offset, int keys) {
  float* scores = q.scores + offset;
  F16 largest[4], sum[4];
  for (int i = 0; i < 4; i++) largest[i] = load(scores + i * kQueryTile);
  for (int k = 4; k < keys; k += 4)
    for (int i = 0; i < 4; i++) largest[i] = max(largest[i], load(scores + (k + i) * kQueryTile));
  const F16 factor = set1(q.job->scale * kLog2E), before = load(q.row_max + offset);
  // Scaling is monotonic, and masked scores stay far below every other.
  const F16 now = max(max(max(largest[0], largest[1]), max(largest[2], largest[3])) * factor, before);
  const F16 minus = zero() - now, rescale = exp2_of_negative(before - now);
  for (int i = 0; i < 4; i++) sum[i] = zero();
  for (int k = 0; k < keys; k += 4)
    for (int i = 0; i < 4; i++) {
      float* at = scores + (k + i) * kQueryTile;
      const F16 p = exp2_of_negative(fma(load(at), factor, minus));
      store(at, p);
      sum[i] = sum[i] + p;
    }
  store(q.row_max + offset, now);
  store(q.rescale + offset, rescale);
  store(q.row_sum + offset, fma(load(q.row_sum + offset), rescale, (sum[0] + sum[2]) + (sum[1] + sum[3])));
}

// One block of keys from `first` on, at most up to `last`, for a tile of V vectors of queries.
template <int V>
inline void attend_block(const QueryTile& q, int first, int last) {
  const int keys = last - first + 1 < kKeyBlock ? last - first + 1 : kKeyBlock;
  const int padded = (keys + kKeyPanel - 1) / kKeyPanel * kKeyPanel;
  score_keys<V>(q, first, padded);
  for (int v = 0; v < V; v++) {
    const bool window_begins = q.job->window > 0 && first <= q.last[v] - q.job->window;
    if (first + padded > q.earliest[v] + 1 || window_begins) mask_scores(q, 16 * v, first, padded);
    softmax(q, 16 * v, padded);
  }
  add_values<V>(q, first, keys);
}

// Sixteen dimensions of the vector of queries at `offset`. Elements without a query are zero.
inline void transpose_queries(const QueryTile& q, int offset, int dim) {
  const AttentionJob& job = *q.job;
  const int dims = job.head_dim - dim < 16 ? job.head_dim - dim : 16;
  F16 rows[16];
  for (int r = 0; r < 16; r++) {
    const int row = q.first + offset + r;
    const float* query = job.queries + row * job.query_stride + dim;
    rows[r] = row >= job.rows ? zero() : dims == 16 ? load(query) : load_part(query, dims);
  }
  transpose(rows);
  for (int d = 0; d < dims; d++) store(q.queries + (dim + d) * kQueryTile + offset, rows[d]);
}

inline void begin_vector(QueryTile& q, int v) {
  const AttentionJob& job = *q.job;
  const int offset = 16 * v, row = q.first + offset;
  for (int d = 0; d < job.head_dim; d += 16) transpose_queries(q, offset, d);
  for (int64_t c = 0; c < q.value_stride; c++) store(q.accumulator + c * kQueryTile + offset, zero());
  // A sink acts as a first key that has this score and a value of zero.
  store(q.row_max + offset, set1(job.sink ? *job.sink * kLog2E : kInitialMax));
  store(q.row_sum + offset, set1(job.sink ? 1.0f : 0.0f));
  q.earliest[v] = q.last[v] = job.positions[row];
  for (int r = 0; r < 16; r++) {
    // Elements without a query take the last query's position.
    const int position = job.positions[row + r < job.rows ? row + r : job.rows - 1];
    q.positions[offset + r] = static_cast<float>(position);
    q.earliest[v] = position < q.earliest[v] ? position : q.earliest[v];
    q.last[v] = position > q.last[v] ? position : q.last[v];
  }
}

// Sixteen columns of one vector of queries, divided by their row sums.
inline void write_columns(const QueryTile& q, int offset, int column) {
  const AttentionJob& job = *q.job;
  const F16 inverse = set1(1.0f) / load(q.row_sum + offset);
  F16 rows[16];
  for (int c = 0; c < 16; c++) rows[c] = load(q.accumulator + (column + c) * kQueryTile + offset) * inverse;
  transpose(rows);
  const int columns = job.value_dim - column;
  for (int r = 0; r < 16 && q.first + offset + r < job.rows; r++) {
    float* out = job.out + (q.first + offset + r) * job.out_stride + column;
    if (columns >= 16)
      store(out, rows[r]);
    else
      store_part(out, rows[r], columns);
  }
}

inline QueryTile query_tile(const AttentionJob& job) {
  const int64_t value_stride = (job.value_dim + 15) / 16 * 16;
  float* scores = job.scratch;
  float* queries = scores + kKeyBlock * kQueryTile;
  float* accumulator = queries + job.head_dim * kQueryTile;
  float* state = accumulator + value_stride * kQueryTile;
  return {&job,
          value_stride,
          0,
          {},
          {},
          scores,
          queries,
          accumulator,
          state,
          state + kQueryTile,
          state + 2 * kQueryTile,
          state + 3 * kQueryTile};
}

template <int V>
inline void attend_tile(QueryTile& q) {
  for (int v = 0; v < V; v++) begin_vector(q, v);
  int earliest = q.earliest[0], last = q.last[0];
  if constexpr (V == 2) {
    earliest = q.earliest[1] < earliest ? q.earliest[1] : earliest;
    last = q.last[1] > last ? q.last[1] : last;
  }
  const int hidden = q.job->window > 0 ? earliest - q.job->window + 1 : 0;
  for (int first = hidden > 0 ? hidden / kKeyBlock * kKeyBlock : 0; first <= last; first += kKeyBlock)
    attend_block<V>(q, first, last);
  for (int v = 0; v < V; v++)
    for (int c = 0; c < q.job->value_dim; c += 16) write_columns(q, 16 * v, c);
}

inline void attend_floats(const AttentionJob& job) {
  QueryTile q = query_tile(job);
  for (; q.first + 16 * (kOuterVectors - 1) < job.rows; q.first += kQueryTile) attend_tile<kOuterVectors>(q);
  for (; q.first < job.rows; q.first += 16) attend_tile<1>(q);
}

// Keys [row / 16, head_dim, 16], values [row / 32, value_stride / 16, 32, 16].
inline void store_floats(const KeyValueRow& kv) {
  auto* keys = static_cast<float*>(kv.keys) + kv.row / kKeyPanel * kKeyPanel * kv.head_dim + kv.row % kKeyPanel;
  for (int d = 0; d < kv.head_dim; d++) keys[d * kKeyPanel] = kv.key[d];
  const int64_t value_stride = (kv.value_dim + 15) / 16 * 16;
  auto* values = static_cast<float*>(kv.values) + kv.row / kKeyRun * kKeyRun * value_stride + kv.row % kKeyRun * 16;
  for (int c = 0; c < value_stride; c += 16) {
    const int n = kv.value_dim - c;
    store(values + c * kKeyRun, n >= 16 ? load(kv.value + c) : load_part(kv.value + c, n));
  }
}

}  // namespace estream::ESTREAM_VARIANT
