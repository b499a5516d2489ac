// Linear attention by the gated delta rule: S. Yang et al., Gated Delta Networks (arXiv 2412.06464). A head's state is a matrix
// from keys to values. Each token decays it, corrects the value that the token's key recalls, and reads it with its query.
// Tokens follow one by one, so a result does not depend on how tokens are divided into chunks.
#pragma once
#include "kernels/float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

inline F16 sigmoid(F16 x) { return set1(1.0f) / (set1(1.0f) + exp(zero() - x)); }

// y = silu(sum over `back` of weight[conv_kernel_size - 1 - back] * the row `back` rows before x).
inline void causal_conv(const float* x, int64_t stride, int history, const float* weight, int conv_kernel_size, float* y,
                        int columns) {
  for (int c = 0; c < columns; c += 16) {
    const int n = columns - c < 16 ? columns - c : 16;
    F16 sum = zero();
    for (int back = history; back >= 0; back--) {
      const float* row = x - back * stride + c;
      const float* w = weight + static_cast<int64_t>(conv_kernel_size - 1 - back) * columns + c;
      sum = n == 16 ? fma(load(row), load(w), sum) : fma(load_part(row, n), load_part(w, n), sum);
    }
    store_part(y + c, silu(sum), n);
  }
}

// y = x * silu(gate) or x * sigmoid(gate).
inline void gate_row(const float* x, const float* gate, bool with_silu, float* y, int columns) {
  for (int c = 0; c < columns; c += 16) {
    const int n = columns - c < 16 ? columns - c : 16;
    const F16 g = load_part(gate + c, n);
    store_part(y + c, load_part(x + c, n) * (with_silu ? silu(g) : sigmoid(g)), n);
  }
}

// x / sqrt(sum of squares + 1e-6) * factor, as the models' kernels normalise queries and keys.
inline void unit_row(const float* x, int columns, float factor, float* y) {
  F16 squares = zero();
  for (int c = 0; c < columns; c += 16) {
    const F16 v = load_part(x + c, columns - c < 16 ? columns - c : 16);
    squares = fma(v, v, squares);
  }
  const float scale = factor / __builtin_sqrtf(reduce_add(squares) + 1e-6f);
  for (int c = 0; c < columns; c++) y[c] = x[c] * scale;
}

// V vectors of value columns from `column` on. Their part of the state stays in the L1 cache.
template <int V>
inline void delta_columns(const DeltaJob& job, int column) {
  float* query = job.scratch;
  float* key = query + job.key_dim;
  const float query_scale = 1.0f / __builtin_sqrtf(static_cast<float>(job.key_dim));
  float* state = job.state + column;
  const auto at = [&](int k, int v) { return state + static_cast<int64_t>(k) * job.value_dim + 16 * v; };
  for (int64_t r = 0; r < job.rows; r++) {
    unit_row(job.queries + r * job.stride, job.key_dim, query_scale, query);
    unit_row(job.keys + r * job.stride, job.key_dim, 1.0f, key);
    // A token at position 0 begins a sequence.
    const F16 decay = set1(job.positions[r] == 0 ? 0.0f : job.decays[r * job.gate_stride]);
    F16 recalled[V], out[V], change[V];
    for (int v = 0; v < V; v++) recalled[v] = out[v] = zero();
    for (int k = 0; k < job.key_dim; k++) {
      const F16 factor = set1(key[k]);
      for (int v = 0; v < V; v++) {
        const F16 s = job.positions[r] == 0 ? zero() : load(at(k, v)) * decay;
        store(at(k, v), s);
        recalled[v] = fma(factor, s, recalled[v]);
      }
    }
    const F16 rate = set1(job.rates[r * job.gate_stride]);
    for (int v = 0; v < V; v++) change[v] = (load(job.values + r * job.stride + column + 16 * v) - recalled[v]) * rate;
    for (int k = 0; k < job.key_dim; k++) {
      const F16 factor = set1(key[k]), q = set1(query[k]);
      for (int v = 0; v < V; v++) {
        const F16 s = fma(factor, change[v], load(at(k, v)));
        store(at(k, v), s);
        out[v] = fma(q, s, out[v]);
      }
    }
    for (int v = 0; v < V; v++) store(job.out + r * job.out_stride + column + 16 * v, out[v]);
  }
}

inline void delta_rule(const DeltaJob& job) {
  int column = 0;
  for (; column + 64 <= job.value_dim; column += 64) delta_columns<4>(job, column);
  for (; column < job.value_dim; column += 16) delta_columns<1>(job, column);
}

}  // namespace estream::ESTREAM_VARIANT
