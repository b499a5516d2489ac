// Products of group-wise quantised matrices, one packed panel of 32 outputs at a time. Each variant provides an integer
// micro-kernel:
//
//   template <int R, int BITS, int GROUP>
//   void microkernel(const uint8_t* panel, int groups, const RowPointers<R>& x, F16 (&sum)[R][2]);
//   constexpr int kMicrokernelRows;   // the largest R
//
// For each group, in ascending order: sum[r][half] = fma(float(integer product) * weight scale, activation scale,
// sum[r][half]).
#pragma once
#include "kernels/float_ops.inl.h"

namespace estream::ESTREAM_VARIANT {

// The epilogue: adds the bias, applies the gate and writes the sums of R rows of one panel to their destinations.
template <int R>
inline void epilogue(const F16 (&sum)[R][2], int first, int panel, int outputs, const PanelOutput& out) {
  for (int r = 0; r < R; r++) {
    const int index = first + r;
    float* row = out.data + (out.rows ? out.rows[index] : index) * out.stride;
    F16 value[2] = {sum[r][0], sum[r][1]};
    if (out.bias)
      for (int half = 0; half < 2; half++) value[half] = value[half] + load(out.bias + panel * kPanel + 16 * half);
    if (out.write == Write::swiglu || out.write == Write::clamped_swiglu) {
      const int width = outputs / 2 - panel * 16;
      const F16 h =
          out.write == Write::swiglu ? silu(value[0]) * value[1] : clamped_swiglu(value[0], value[1], out.alpha, out.limit);
      if (width >= 16) {
        store(row + panel * 16, h);
      } else {
        store_part(row + panel * 16, h, width);
      }
      continue;
    }
    const F16 weight = set1(out.weights ? out.weights[index] * out.factor : out.factor);
    for (int half = 0; half < 2; half++) {
      const int column = panel * kPanel + 16 * half;
      const int width = outputs - column;
      if (width <= 0) break;
      if (width >= 16) {
        store(row + column, out.write == Write::add ? fma(weight, value[half], load(row + column)) : value[half]);
      } else {
        const F16 before = load_part(row + column, width);
        store_part(row + column, out.write == Write::add ? fma(weight, value[half], before) : value[half], width);
      }
    }
  }
}

template <int R, int BITS, int GROUP>
inline void rows_int8(const PackedMatrix& w, int panel, const QuantizedRows& x, const int32_t* x_rows, int first,
                      const PanelOutput& out) {
  RowPointers<R> pointers;
  for (int r = 0; r < R; r++) {
    const int64_t row = x_rows ? x_rows[first + r] : first + r;
    pointers.codes[r] = x.codes + row * x.columns;
    pointers.scales[r] = x.scales + row * x.groups;
    pointers.sums[r] = x.sums + row * x.groups;
  }
  F16 sum[R][2];
  microkernel<R, BITS, GROUP>(w.data + panel * w.panel_bytes(), w.groups(), pointers, sum);
  epilogue<R>(sum, first, panel, w.outputs, out);
}

template <int R, int BITS, int GROUP>
inline void rest_int8(const PackedMatrix& w, int panel, const QuantizedRows& x, const int32_t* x_rows, int first, int count,
                      const PanelOutput& out) {
  if constexpr (R > 0) {
    if (count == R) return rows_int8<R, BITS, GROUP>(w, panel, x, x_rows, first, out);
    rest_int8<R - 1, BITS, GROUP>(w, panel, x, x_rows, first, count, out);
  }
}

template <int BITS, int GROUP>
inline void panel_int8(const PackedMatrix& w, int panel, const QuantizedRows& x, const int32_t* x_rows, int count,
                       const PanelOutput& out) {
  int first = 0;
  for (; first + kMicrokernelRows <= count; first += kMicrokernelRows)
    rows_int8<kMicrokernelRows, BITS, GROUP>(w, panel, x, x_rows, first, out);
  rest_int8<kMicrokernelRows - 1, BITS, GROUP>(w, panel, x, x_rows, first, count - first, out);
}

// Calls f with the matrix's bits and group as template arguments.
template <typename F>
ESTREAM_INLINE void for_layout(const PackedMatrix& w, F&& f) {
  if (w.bits == 4) {
    if (w.group == 128) return f.template operator()<4, 128>();
    if (w.group == 64) return f.template operator()<4, 64>();
    return f.template operator()<4, 32>();
  }
  if (w.group == 128) return f.template operator()<8, 128>();
  if (w.group == 64) return f.template operator()<8, 64>();
  return f.template operator()<8, 32>();
}

inline void matmul_panel(const PackedMatrix& w, int panel, const QuantizedRows& x, const int32_t* x_rows, int count,
                         const PanelOutput& out) {
  for_layout(w, [&]<int BITS, int GROUP>() { panel_int8<BITS, GROUP>(w, panel, x, x_rows, count, out); });
}

// One group of one panel as floats [group, 32].
inline void dequantize_block(const uint8_t* block, int bits, int group, float* out) {
  const auto* scales = reinterpret_cast<const uint16_t*>(block + 4 * bits * group);
  float scale[kPanel];
  store(scale, load_half(scales));
  store(scale + 16, load_half(scales + 16));
  const int step = bits == 4 ? 8 : 4;
  for (int k = 0; k < group; k += step)
    for (int output = 0; output < kPanel; output++) {
      const uint8_t* bytes = block + k / step * 128 + output * 4;
      for (int j = 0; j < 4; j++) {
        if (bits == 4) {
          out[(k + j) * kPanel + output] = scale[output] * static_cast<float>((bytes[j] & 15) - 8);
          out[(k + 4 + j) * kPanel + output] = scale[output] * static_cast<float>((bytes[j] >> 4) - 8);
        } else {
          out[(k + j) * kPanel + output] = scale[output] * static_cast<float>(bytes[j] - 128);
        }
      }
    }
}

template <int R>
inline void rows_float(const float* weights, int group, const float* const* x, float* sums) {
  F16 sum[R][2];
  for (int r = 0; r < R; r++)
    for (int half = 0; half < 2; half++) sum[r][half] = load(sums + r * kPanel + 16 * half);
  for (int k = 0; k < group; k++) {
    const F16 w0 = load(weights + k * kPanel), w1 = load(weights + k * kPanel + 16);
    for (int r = 0; r < R; r++) {
      const F16 a = set1(x[r][k]);
      sum[r][0] = fma(a, w0, sum[r][0]);
      sum[r][1] = fma(a, w1, sum[r][1]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int half = 0; half < 2; half++) store(sums + r * kPanel + 16 * half, sum[r][half]);
}

inline void matmul_panel_float(const PackedMatrix& w, int panel, const float* x, int64_t x_stride, const int32_t* x_rows,
                               int count, const PanelOutput& out, float* scratch) {
  float* weights = scratch;
  float* sums = scratch + w.group * kPanel;
  const auto row_at = [&](int i) { return x + (x_rows ? x_rows[i] : i) * x_stride; };
  for (int begin = 0; begin < count; begin += kFloatRows) {
    const int rows = count - begin < kFloatRows ? count - begin : kFloatRows;
    for (int i = 0; i < rows * kPanel; i++) sums[i] = 0.0f;
    for (int g = 0; g < w.groups(); g++) {
      dequantize_block(w.data + panel * w.panel_bytes() + g * w.block_bytes(), w.bits, w.group, weights);
      int r = 0;
      for (; r + 4 <= rows; r += 4) {
        const float* pointers[4];
        for (int i = 0; i < 4; i++) pointers[i] = row_at(begin + r + i) + g * w.group;
        rows_float<4>(weights, w.group, pointers, sums + r * kPanel);
      }
      for (; r < rows; r++) {
        const float* pointer = row_at(begin + r) + g * w.group;
        rows_float<1>(weights, w.group, &pointer, sums + r * kPanel);
      }
    }
    for (int r = 0; r < rows; r++) {
      const F16 sum[1][2] = {{load(sums + r * kPanel), load(sums + r * kPanel + 16)}};
      epilogue<1>(sum, begin + r, panel, w.outputs, out);
    }
  }
}

}  // namespace estream::ESTREAM_VARIANT
