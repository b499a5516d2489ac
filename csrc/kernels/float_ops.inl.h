// Float kernels over F16, compiled once for each instruction set. Every reduction has one fixed order, so a row's result does
// not depend on the rows beside it.
#pragma once
#include "kernels/kernels.h"
#if defined(__AVX512VNNI__)
#include "kernels/quantize_avx512.h"
#endif

namespace estream::ESTREAM_VARIANT {

// Loads the first n < 16 floats at p. The other elements are zero.
inline F16 load_part(const float* p, int n) {
  float v[16] = {};
  for (int i = 0; i < n; i++) v[i] = p[i];
  return load(v);
}

inline void store_part(float* p, F16 x, int n) {
  float v[16];
  store(v, x);
  for (int i = 0; i < n; i++) p[i] = v[i];
}

// e^x within 2 ulp; 0 below -87. Range reduction and polynomial: S. Moshier, Cephes Mathematical Library, expf.
inline F16 exp(F16 x) {
  const F16 bounded = max(min(x, set1(88.0f)), set1(-87.5f));
  const F16 n = round(bounded * set1(1.44269504f));
  F16 r = fma(n, set1(-0.693359375f), bounded);
  r = fma(n, set1(2.12194440e-4f), r);
  F16 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r + set1(1.0f));
  return keep_where_greater(x, set1(-87.0f), scale_by_power(p, n));
}

inline F16 silu(F16 x) { return x / (set1(1.0f) + exp(zero() - x)); }

// The clamped SwiGLU of gpt-oss: gate * sigmoid(alpha * gate) * (up + 1), with both inputs clamped first.
inline F16 clamped_swiglu(F16 gate, F16 up, float alpha, float limit) {
  const F16 g = min(gate, set1(limit)), u = max(min(up, set1(limit)), set1(-limit));
  return g / (set1(1.0f) + exp(zero() - g * set1(alpha))) * (u + set1(1.0f));
}

inline void rms_norm(const float* x, const float* weight, float eps, float* y, int columns) {
  F16 squares = zero();
  int i = 0;
  for (; i + 16 <= columns; i += 16) {
    const F16 v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (i < columns) {
    const F16 v = load_part(x + i, columns - i);
    squares = fma(v, v, squares);
  }
  const F16 scale = set1(1.0f / __builtin_sqrtf(reduce_add(squares) / static_cast<float>(columns) + eps));
  for (i = 0; i + 16 <= columns; i += 16) store(y + i, load(x + i) * scale * load(weight + i));
  if (i < columns) {
    const int n = columns - i;
    store_part(y + i, load_part(x + i, n) * scale * load_part(weight + i, n), n);
  }
}

inline void layer_norm(const float* x, const float* weight, const float* bias, float eps, float* y, int columns) {
  const auto at = [&](const float* p, int i) { return i + 16 <= columns ? load(p + i) : load_part(p + i, columns - i); };
  F16 sum = zero();
  for (int i = 0; i < columns; i += 16) sum = sum + at(x, i);
  const F16 mean = set1(reduce_add(sum) / static_cast<float>(columns));
  F16 squares = zero();
  for (int i = 0; i < columns; i += 16) {
    // Elements after the last column must be zero; x - mean is not.
    float part[16] = {};
    store_part(part, at(x, i) - mean, columns - i < 16 ? columns - i : 16);
    const F16 v = load(part);
    squares = fma(v, v, squares);
  }
  const F16 scale = set1(1.0f / __builtin_sqrtf(reduce_add(squares) / static_cast<float>(columns) + eps));
  for (int i = 0; i < columns; i += 16) {
    const F16 v = fma((at(x, i) - mean) * scale, at(weight, i), at(bias, i));
    store_part(y + i, v, columns - i < 16 ? columns - i : 16);
  }
}

inline void quantize_row(const float* x, int columns, int padded, int group, int8_t* codes, float* scales, int32_t* sums) {
  const auto at = [&](int i) {
    if (i + 16 <= columns) return load(x + i);
    return i < columns ? load_part(x + i, columns - i) : zero();
  };
  const auto quantize_group = [&](int g) {
    const int begin = g * group;
    F16 largest = zero();
    for (int i = 0; i < group; i += 16) largest = max(largest, abs(at(begin + i)));
    const float absmax = reduce_max(largest);
    const F16 inverse = set1(absmax > 0.0f ? 127.0f / absmax : 0.0f);
    F16 sum = zero();
    for (int i = 0; i < group; i += 16) {
      // With a subnormal absmax the inverse may be rounded so far that a product exceeds 127.
      const F16 code = round(max(min(at(begin + i) * inverse, set1(127.0f)), set1(-127.0f)));
      store_int8(codes + begin + i, code);
      sum = sum + code;
    }
    scales[g] = absmax / 127.0f;
    // Integers below 2^24 add exactly in any order.
    sums[g] = static_cast<int32_t>(reduce_add(sum));
  };
  int g = 0;
#if defined(__AVX512VNNI__)
  if (group == 64)
    for (; 64 * (g + 4) <= columns; g += 4)
      if (!quantize_four_groups(x + 64 * g, codes + 64 * g, scales + g, sums + g))
        for (int i = g; i < g + 4; i++) quantize_group(i);
#endif
  for (; g * group < padded; g++) quantize_group(g);
}

inline void rope(float* x, const float* cosine, const float* sine, int heads, int head_dim, int dims) {
  const int half = dims / 2;
  for (int h = 0; h < heads; h++) {
    float* low = x + static_cast<int64_t>(h) * head_dim;
    float* high = low + half;
    int i = 0;
    for (; i + 16 <= half; i += 16) {
      const F16 a = load(low + i), b = load(high + i), c = load(cosine + i), s = load(sine + i);
      store(low + i, a * c - b * s);
      store(high + i, b * c + a * s);
    }
    if (i < half) {
      const int n = half - i;
      const F16 a = load_part(low + i, n), b = load_part(high + i, n);
      const F16 c = load_part(cosine + i, n), s = load_part(sine + i, n);
      store_part(low + i, a * c - b * s, n);
      store_part(high + i, b * c + a * s, n);
    }
  }
}

inline void add(const float* x, float weight, float* y, int columns) {
  const F16 w = set1(weight);
  int i = 0;
  for (; i + 16 <= columns; i += 16) store(y + i, fma(w, load(x + i), load(y + i)));
  if (i < columns) {
    const int n = columns - i;
    store_part(y + i, fma(w, load_part(x + i, n), load_part(y + i, n)), n);
  }
}

template <int R, int V>
inline void router_tile(const float* x, int64_t x_stride, const float* weight, int hidden, int columns, float* logits) {
  F16 sum[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) sum[r][v] = zero();
  for (int k = 0; k < hidden; k++) {
    F16 w[V];
    for (int v = 0; v < V; v++) w[v] = load(weight + static_cast<int64_t>(k) * columns + 16 * v);
    for (int r = 0; r < R; r++) {
      const F16 a = set1(x[r * x_stride + k]);
      for (int v = 0; v < V; v++) sum[r][v] = fma(a, w[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(logits + static_cast<int64_t>(r) * columns + 16 * v, sum[r][v]);
}

inline void router(const float* x, int64_t x_stride, int rows, const float* weight, int hidden, int columns, float* logits) {
  for (int column = 0; column < columns;) {
    const bool two = column + 32 <= columns;
    for (int r = 0; r < rows;) {
      const float* xr = x + r * x_stride;
      float* yr = logits + static_cast<int64_t>(r) * columns + column;
      const bool four = r + 4 <= rows;
      if (two && four) {
        router_tile<4, 2>(xr, x_stride, weight + column, hidden, columns, yr);
      } else if (two) {
        router_tile<1, 2>(xr, x_stride, weight + column, hidden, columns, yr);
      } else if (four) {
        router_tile<4, 1>(xr, x_stride, weight + column, hidden, columns, yr);
      } else {
        router_tile<1, 1>(xr, x_stride, weight + column, hidden, columns, yr);
      }
      r += four ? 4 : 1;
    }
    column += two ? 32 : 16;
  }
}

}  // namespace estream::ESTREAM_VARIANT
