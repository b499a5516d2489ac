// The products of packed matrices, by every kernel of every variant.
#include "tests/kernels/interleaved_product.h"
#include "tests/matrices.h"

namespace estream::tests {

namespace {

using RunPanel = std::function<void(int panel, const PanelOutput& out)>;

// Writes a product to rows in rising order or, with a list of rows, in falling order. Memory between the results must not
// change.
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
            InterleavedProduct product(kernels, q.view(), from, rows, w.bits);
            check_write(w, write, of_codes, from, rows,
                        [&](int panel, const PanelOutput& out) { product.multiply(w, panel, out); });
          }
          check_write(w, write, of_floats, from, rows, [&](int panel, const PanelOutput& out) {
            kernels.matmul_panel_float(w, panel, x.data(), w.inputs, from, rows, out, scratch.data());
          });
        }
  });
}

}  // namespace

void products_match_their_definition() {
  Random random{3};
  for (const int bits : {4, 8})
    for (const int group : {32, 64, 128})
      for (const int outputs : {7, 64, 81})
        check_products(random, random_matrix(random, outputs, 2 * group, bits, group), 1, 13);
  // More float rows than one call holds the sums of.
  check_products(random, random_matrix(random, 33, 32, 4, 32), kFloatRows + 5, kFloatRows + 5);
}

}  // namespace estream::tests
