// Packed matrices: quantized rows, products, packing and experts.
#include <algorithm>
#include <cmath>
#include <functional>

#include "core/cpu_device.h"
#include "core/pack.h"
#include "tests/harness.h"
#include "tests/kernels/interleaved_product.h"

namespace estream::tests {

namespace {

struct Matrix {
  PackedMatrix packed;
  std::vector<uint8_t> bytes = std::vector<uint8_t>(packed.bytes());
  std::vector<float> weights = std::vector<float>(packed.outputs * packed.inputs);  // [outputs, inputs]
};

// Any codes; scales of either sign between 2^-7 and 2^-6.
Matrix random_matrix(Random& random, int outputs, int inputs, int bits, int group) {
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

Quantized quantize(const Kernels& kernels, const std::vector<float>& x, int rows, int padded, int group) {
  Quantized q{rows, padded, group};
  const int columns = static_cast<int>(x.size()) / rows;
  for (int r = 0; r < rows; r++)
    kernels.quantize_row(&x[r * columns], columns, padded, group, &q.codes[r * padded], &q.scales[r * q.groups],
                         &q.sums[r * q.groups]);
  return q;
}

void check_codes(const Quantized& q, const std::vector<float>& x) {
  const int columns = static_cast<int>(x.size()) / q.rows;
  for (int i = 0; i < q.rows * q.columns; i += q.group) {
    const auto value = [&](int k) {
      return i % q.columns + k < columns ? x[i / q.columns * columns + i % q.columns + k] : 0.0f;
    };
    float peak = 0.0f;
    int sum = 0;
    for (int k = 0; k < q.group; k++) peak = std::max(peak, std::fabs(value(k)));
    const float inverse = peak > 0.0f ? 127.0f / peak : 0.0f;
    for (int k = 0; k < q.group; k++) {
      sum += q.codes[i + k];
      // The inverse of a subnormal peak may be infinite.
      CHECK(std::isinf(inverse) || q.codes[i + k] == std::nearbyint(value(k) * inverse));
    }
    CHECK(q.sums[i / q.group] == sum && q.scales[i / q.group] == peak / 127.0f);
  }
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

using Element = std::function<double(int row, int column)>;

// x [rows, inputs] . weights, [rows, outputs].
std::vector<double> products(const Matrix& m, int rows, const Element& x) {
  const int inputs = m.packed.inputs, outputs = m.packed.outputs;
  std::vector<double> y(rows * outputs);
  for (int r = 0; r < rows; r++)
    for (int k = 0; k < inputs; k++) {
      const double value = x(r, k);
      for (int o = 0; o < outputs; o++) y[r * outputs + o] += value * m.weights[o * inputs + k];
    }
  return y;
}

using RunPanel = std::function<void(int panel, const PanelOutput& out)>;

// Writes a product to rows in rising or, with a row list, falling order. What lies between the results must stay.
void check_write(const PackedMatrix& w, Write write, const std::vector<double>& expected, const int32_t* list, int rows,
                 const RunPanel& run) {
  const int width = write == Write::swiglu ? w.outputs / 2 : w.outputs, stride = width + 3;
  std::vector<float> y((rows + 1) * stride, 0.5f), weights(rows, 1.0f);
  std::vector<double> want(y.begin(), y.end());
  std::vector<int32_t> to(rows);
  for (int r = 0; r < rows; r++) {
    to[r] = list ? rows - r : r;
    if (list) weights[r] = 0.25f * static_cast<float>(r + 1);
    const double* p = &expected[(list ? list[r] : r) * w.outputs];
    for (int c = 0; c < width; c++) {
      const double *gate = p + c / 16 * kPanel + c % 16, linear = write == Write::add ? 0.5 + weights[r] * p[c] : p[c];
      want[to[r] * stride + c] = write == Write::swiglu ? silu(gate[0]) * gate[16] : linear;
    }
  }
  const PanelOutput out = {write, y.data(), stride, list ? to.data() : nullptr, list ? weights.data() : nullptr};
  for (int panel = 0; panel < w.panels(); panel++) run(panel, out);
  CHECK(close(want, y));
}

void check_products(Random& random, const Matrix& m, int rows_from, int rows_to) {
  const PackedMatrix& w = m.packed;
  const std::vector<float> x = random.values(rows_to * w.inputs);
  const Quantized q = quantize(*find_kernels("portable"), x, rows_to, w.inputs, w.group);
  const std::vector<double> of_floats = products(m, rows_to, [&](int r, int k) { return x[r * w.inputs + k]; });
  const std::vector<double> of_codes = products(
      m, rows_to, [&](int r, int k) { return double{q.scales[(r * w.inputs + k) / w.group]} * q.codes[r * w.inputs + k]; });
  std::vector<int32_t> list(rows_to);
  for (int r = 0; r < rows_to; r++) list[r] = (5 * r + 3) % rows_to;
  std::vector<float> scratch((w.group + kFloatRows) * kPanel);
  for_each_variant([&](const Kernels& kernels) {
    for (int rows = rows_from; rows <= rows_to; rows++)
      for (const int32_t* from : {static_cast<const int32_t*>(nullptr), static_cast<const int32_t*>(list.data())})
        for (const Write write : {Write::store, Write::add, Write::swiglu}) {
          if (write == Write::swiglu && w.outputs % kPanel != 0) continue;
          if (kernels.matmul_panel)
            check_write(w, write, of_codes, from, rows,
                        [&](int panel, const PanelOutput& out) { kernels.matmul_panel(w, panel, q.view(), from, rows, out); });
          if (kernels.matmul_panel_interleaved) {
            InterleavedProduct tiles(kernels, q.view(), from, rows, w.bits);
            check_write(w, write, of_codes, from, rows,
                        [&](int panel, const PanelOutput& out) { tiles.multiply(w, panel, out); });
          }
          check_write(w, write, of_floats, from, rows, [&](int panel, const PanelOutput& out) {
            kernels.matmul_panel_float(w, panel, x.data(), w.inputs, from, rows, out, scratch.data());
          });
        }
  });
}

WeightRows rows_of(const std::vector<float>& source, int columns) {
  WeightRows rows{WeightType::float32, columns, {}};
  for (size_t i = 0; i < source.size(); i += columns) rows.rows.push_back(reinterpret_cast<const uint8_t*>(&source[i]));
  return rows;
}

void check_packing(const std::vector<float>& source, int columns, int bits, int group) {
  const int outputs = static_cast<int>(source.size()) / columns;
  Matrix m = {{nullptr, outputs, (columns + group - 1) / group * group, bits, group}};
  std::vector<int32_t> order(outputs);
  for (int o = 0; o < outputs; o++) order[o] = o % 9 == 4 ? -1 : outputs - 1 - o;
  const auto pack = [&](const Kernels& kernels, int threads) {
    ThreadPool pool(threads);
    std::vector<uint8_t> bytes(m.packed.bytes(), 0xcc);
    const PackingResult result = pack_matrix(pool, kernels, rows_of(source, columns), order.data(), m.packed, bytes.data());
    CHECK(result.bad_row == -1);
    return bytes;
  };
  m.bytes = pack(*find_kernels("portable"), 1);
  for_each_variant([&](const Kernels& kernels) { CHECK(pack(kernels, 3) == m.bytes); });
  m.packed.data = m.bytes.data();
  unpack_matrix(m.packed, m.weights.data());
  // Of a largest weight of 1: half a step and the rounding of the scale; with 4 bits also what is clipped.
  const float bound = bits == 4 ? 0.25f : 0.57f / 127.0f;
  for (int i = 0; i < outputs * m.packed.inputs; i++) {
    const int row = order[i / m.packed.inputs], column = i % m.packed.inputs;
    CHECK(std::fabs(m.weights[i] - (row < 0 || column >= columns ? 0.0f : source[row * columns + column])) <= bound);
  }
}

struct ExpertTest {
  // More tokens than the scratch has room for, and than one task multiplies.
  static constexpr int kTokens = 230, kRoom = 200, kHidden = 64, kWidth = 48, kGroup = 32;
  Random random{7};
  Matrix gate_up = random_matrix(random, 2 * kWidth, kHidden, 4, kGroup),
         down = random_matrix(random, kHidden, kHidden, 8, kGroup);
  std::vector<float> x = random.values(kTokens * kHidden), weights = random.values(kTokens);
  std::vector<float> gate_up_bias = random.values(2 * kWidth), down_bias = random.values(kHidden);
  bool clamped = false;

  ExpertWeights expert() const {
    if (!clamped) return {gate_up.packed, down.packed};
    return {gate_up.packed, down.packed, gate_up_bias.data(), down_bias.data(), 1.702f, 0.6f};
  }
  double gated(double gate, double up) const {
    if (!clamped) return silu(gate) * up;
    const double g = std::min(gate, 0.6), u = std::clamp(up, -0.6, 0.6);
    return g / (1.0 + std::exp(-1.702 * g)) * (u + 1.0);
  }

  std::vector<float> run(int threads, bool quantized, int at_once) {
    CpuDevice device(threads, false);
    Quantized q{kTokens, kHidden, kGroup}, s{kRoom, kHidden, kGroup};
    device.quantize({x.data(), kTokens, kHidden}, kHidden, {q.codes.data(), q.scales.data(), q.sums.data(), kHidden, kGroup});
    const Activations in = quantized ? Activations{q.view(), nullptr, 0} : Activations{{}, x.data(), kHidden};
    std::vector<float> hidden(kRoom * kHidden, NAN), y(kTokens * kHidden);
    std::vector<int32_t> from(kTokens), to(kTokens);
    for (int i = 0; i < kTokens; i++) from[i] = kTokens - 1 - i, to[i] = (i + 7) % kTokens;
    for (int i = 0; i < kTokens; i += at_once)
      device.expert(expert(), in, &from[i], {&to[i], &weights[i]}, std::min(at_once, kTokens - i),
                    {hidden.data(), s.codes.data(), s.scales.data(), s.sums.data(), kRoom}, y.data(), kHidden);
    return y;
  }
  std::vector<double> expected() const {
    std::vector<double> gu = products(gate_up, kTokens, [&](int r, int k) { return x[(kTokens - 1 - r) * kHidden + k]; });
    for (size_t i = 0; clamped && i < gu.size(); i++) gu[i] += gate_up_bias[i % (2 * kWidth)];
    std::vector<double> results = products(down, kTokens, [&](int r, int k) {
      const double* gate = &gu[r * 2 * kWidth + k / 16 * kPanel + k % 16];
      return k < kWidth ? gated(gate[0], gate[16]) : 0.0;
    });
    for (size_t i = 0; clamped && i < results.size(); i++) results[i] += down_bias[i % kHidden];
    std::vector<double> y(results.size());
    for (int i = 0; i < kTokens * kHidden; i++) y[(i + 7 * kHidden) % (kTokens * kHidden)] = weights[i / kHidden] * results[i];
    return y;
  }
};

}  // namespace

void codes_are_exact_in_every_variant() {
  constexpr float kFactors[] = {1.0f, 1e30f, 3e-3f, 0.0f, 1e-36f, 1e-40f};
  Random random{2};
  std::vector<float> x = random.values(6 * 200);
  for (int i = 0; i < 6 * 200; i++) x[i] *= kFactors[i / 200];
  for (const int group : {32, 64, 128}) {
    const Quantized first = quantize(*find_kernels("portable"), x, 6, 256, group);
    check_codes(first, x);
    for_each_variant([&](const Kernels& kernels) {
      const Quantized q = quantize(kernels, x, 6, 256, group);
      CHECK(q.codes == first.codes && same_bits(q.scales, first.scales) && q.sums == first.sums);
    });
  }
}

void products_match_their_definition() {
  Random random{3};
  for (const int bits : {4, 8})
    for (const int group : {32, 64, 128})
      for (const int outputs : {7, 64, 81})
        check_products(random, random_matrix(random, outputs, 2 * group, bits, group), 1, 13);
  // More float rows than one call has in flight.
  check_products(random, random_matrix(random, 33, 32, 4, 32), kFloatRows + 5, kFloatRows + 5);
}

void given_codes_are_kept() {
  constexpr int kRows = 37, kColumns = 128, kGroup = 64, kGroups = kColumns / kGroup;
  Random random{9};
  for (const int bits : {4, 8}) {
    std::vector<int8_t> codes(kRows * kColumns);
    for (int8_t& code : codes) code = static_cast<int8_t>(bits == 4 ? random.below(16) - 8 : random.below(255) - 127);
    std::vector<uint16_t> scales(kRows * kGroups, 0xb800);  // -0.5
    std::vector<int32_t> order = {36, -1, 0, 5};
    Matrix m = {{nullptr, static_cast<int>(order.size()), kColumns + kGroup, bits, kGroup}};
    const CodeRows rows{codes.data(), scales.data(), kColumns};
    ThreadPool pool(2);
    CHECK(pack_codes(pool, rows, order.data(), m.packed, m.bytes.data()) == -1);
    m.packed.data = m.bytes.data();
    unpack_matrix(m.packed, m.weights.data());
    std::vector<float> source(codes.begin(), codes.end());
    for (float& value : source) value *= -0.5f;
    for (int i = 0; i < m.packed.outputs * m.packed.inputs; i++) {
      const int row = order[i / m.packed.inputs], column = i % m.packed.inputs;
      CHECK(m.weights[i] == (row < 0 || column >= kColumns ? 0.0f : source[row * kColumns + column]));
    }
    const PackingError error = packing_error(pool, rows_of(source, kColumns), order.data(), m.packed);
    CHECK(error.squared_error == 0.0 && error.squared > 0.0);
    scales[5 * kGroups + 1] = 0x7c00;
    CHECK(pack_codes(pool, rows, order.data(), m.packed, m.bytes.data()) == 5);
    codes[3] = -128;
    CHECK(pack_codes(pool, rows, order.data(), m.packed, m.bytes.data()) == 0);
  }
}

void packing_comes_back_close() {
  Random random{6};
  for (const int bits : {4, 8})
    for (const int group : {32, 64, 128}) check_packing(random.values(70 * 150), 150, bits, group);
}

void experts_do_not_depend_on_threads_or_company() {
  for (const bool clamped : {false, true}) {
    ExpertTest test;
    test.clamped = clamped;
    const std::vector<double> want = test.expected();
    for_each_variant([&](const Kernels&) {
      for (const bool quantized : {false, true}) {
        const std::vector<float> y = test.run(1, quantized, ExpertTest::kTokens);
        CHECK(quantized || close(want, y));
        CHECK(same_bits(y, test.run(4, quantized, ExpertTest::kTokens)) && same_bits(y, test.run(1, quantized, 1)));
      }
    });
  }
}

}  // namespace estream::tests
