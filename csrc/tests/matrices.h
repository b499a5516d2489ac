// Random packed matrices and quantised rows, and the products that are expected of them.
#pragma once
#include <cmath>
#include <functional>
#include <vector>

#include "core/pack.h"
#include "tests/harness.h"

namespace estream::tests {

struct Matrix {
  PackedMatrix packed;
  std::vector<uint8_t> bytes = std::vector<uint8_t>(packed.bytes());
  std::vector<float> weights = std::vector<float>(packed.outputs * packed.inputs);  // [outputs, inputs]
};

// Any codes; scales of either sign between 2^-7 and 2^-6.
inline Matrix random_matrix(Random& random, int outputs, int inputs, int bits, int group) {
  Matrix m = {{nullptr, outputs, inputs, bits, group}};
  for (uint8_t& byte : m.bytes) byte = static_cast<uint8_t>(random.bits());
  for (size_t behind = m.packed.block_bytes(); behind <= m.bytes.size(); behind += m.packed.block_bytes())
    for (size_t i = behind - 2 * kPanel + 1; i < behind; i += 2) m.bytes[i] = static_cast<uint8_t>((m.bytes[i] & 0x83) | 0x20);
  m.packed.data = m.bytes.data();
  unpack_matrix(m.packed, m.weights.data());
  return m;
}

struct Quantized {
  int rows, columns, group, groups = columns / group;
  std::vector<int8_t> codes = std::vector<int8_t>(rows * columns);
  std::vector<float> scales = std::vector<float>(rows * groups);
  std::vector<int32_t> sums = std::vector<int32_t>(rows * groups);

  QuantizedRows view() const { return {codes.data(), scales.data(), sums.data(), columns, groups}; }
};

inline Quantized quantize(const Kernels& kernels, const std::vector<float>& x, int rows, int padded, int group) {
  Quantized q{rows, padded, group};
  const int columns = static_cast<int>(x.size()) / rows;
  for (int r = 0; r < rows; r++)
    kernels.quantize_row(&x[r * columns], columns, padded, group, &q.codes[r * padded], &q.scales[r * q.groups],
                         &q.sums[r * q.groups]);
  return q;
}

inline double silu(double x) { return x / (1.0 + std::exp(-x)); }

using Element = std::function<double(int row, int column)>;

// x [rows, inputs] . weights, [rows, outputs].
inline std::vector<double> products(const Matrix& m, int rows, const Element& x) {
  const int inputs = m.packed.inputs, outputs = m.packed.outputs;
  std::vector<double> y(rows * outputs);
  for (int r = 0; r < rows; r++)
    for (int k = 0; k < inputs; k++) {
      const double value = x(r, k);
      for (int o = 0; o < outputs; o++) y[r * outputs + o] += value * m.weights[o * inputs + k];
    }
  return y;
}

inline WeightRows rows_of(const std::vector<float>& source, int columns) {
  WeightRows rows{WeightType::float32, columns, {}};
  for (size_t i = 0; i < source.size(); i += columns) rows.rows.push_back(reinterpret_cast<const uint8_t*>(&source[i]));
  return rows;
}

}  // namespace estream::tests
