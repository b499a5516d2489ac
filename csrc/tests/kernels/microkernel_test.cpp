// Products in which all floats are integers, so that a single wrong integer is seen.
#include <algorithm>

#include "tests/harness.h"
#include "tests/kernels/interleaved_product.h"

namespace estream::tests {

namespace {

constexpr int kRows = 19, kGroups = 3;

struct WholeNumbers {
  const PackedMatrix shape;
  std::vector<uint8_t> bytes = std::vector<uint8_t>(shape.bytes());
  std::vector<int> weights = std::vector<int>(shape.panels() * kPanel * shape.inputs);  // [outputs, inputs]
  std::vector<int8_t> codes = std::vector<int8_t>(kRows * shape.inputs);
  std::vector<float> scales = std::vector<float>(kRows * kGroups, 1.0f);
  std::vector<int32_t> sums = std::vector<int32_t>(kRows * kGroups);

  // Half of the codes are the largest or the smallest possible, so that sums of too few bits would overflow.
  WholeNumbers(Random& random, const PackedMatrix& packed) : shape(packed) {
    for (size_t i = 0; i < bytes.size(); i++)
      bytes[i] = static_cast<uint8_t>(random.below(2) ? random.bits() : 0u - random.below(2));
    for (size_t i = 0; i < codes.size(); i++) {
      codes[i] = static_cast<int8_t>(random.below(2) ? random.below(255) - 127 : 127 - 254 * random.below(2));
      sums[i / shape.group] += codes[i];
    }
    for (size_t behind = shape.block_bytes(); behind <= bytes.size(); behind += shape.block_bytes())
      for (size_t i = behind - 2 * kPanel; i < behind; i += 2) bytes[i] = 0, bytes[i + 1] = 0x3c;  // 1 in fp16
    for (size_t i = 0; i < weights.size(); i++)
      weights[i] = weight(static_cast<int>(i) / shape.inputs, static_cast<int>(i) % shape.inputs);
  }
  // The layout of docs/package-format.md.
  int weight(int output, int input) const {
    const int step = shape.bits == 4 ? 8 : 4, k = input % shape.group;
    const uint8_t* block = &bytes[output / kPanel * shape.panel_bytes() + input / shape.group * shape.block_bytes()];
    const int byte = block[k / step * 128 + output % kPanel * 4 + k % 4];
    if (shape.bits == 8) return byte - 128;
    return (k % 8 < 4 ? byte & 15 : byte >> 4) - 8;
  }
  std::vector<float> expected() const {
    std::vector<float> y(kRows * shape.outputs);
    for (int i = 0; i < kRows * shape.outputs; i++) {
      const int row = i / shape.outputs * shape.inputs, output = i % shape.outputs * shape.inputs;
      int sum = 0;
      for (int k = 0; k < shape.inputs; k++) sum += weights[output + k] * codes[row + k];
      y[i] = static_cast<float>(sum);  // exact: below 2^24
    }
    return y;
  }
  // The product of interleaved rows. A variant may multiply few rows in another way than many.
  std::vector<float> interleaved_products(const Kernels& kernels, int rows) const {
    PackedMatrix w = shape;
    w.data = bytes.data();
    InterleavedProduct product(kernels, {codes.data(), scales.data(), sums.data(), shape.inputs, kGroups}, nullptr, rows,
                               shape.bits);
    std::vector<float> y(rows * shape.outputs);
    const PanelOutput out = {Write::store, y.data(), shape.outputs, nullptr, nullptr};
    for (int panel = 0; panel < w.panels(); panel++) product.multiply(w, panel, out);
    return y;
  }
  std::vector<float> products(const Kernels& kernels, int rows) const {
    PackedMatrix w = shape;
    w.data = bytes.data();
    std::vector<float> y(kRows * shape.outputs);
    for (int first = 0; first < kRows; first += rows) {
      const QuantizedRows x = {&codes[first * shape.inputs], &scales[first * kGroups], &sums[first * kGroups], shape.inputs,
                               kGroups};
      const PanelOutput out = {Write::store, &y[first * shape.outputs], shape.outputs, nullptr, nullptr};
      for (int panel = 0; panel < w.panels(); panel++)
        kernels.matmul_panel(w, panel, x, nullptr, std::min(rows, kRows - first), out);
    }
    return y;
  }
};

}  // namespace

void integers_are_exact_in_every_variant() {
  Random random{12};
  for (const int bits : {4, 8})
    for (const int group : {32, 64, 128}) {
      const WholeNumbers test(random, {nullptr, 70, kGroups * group, bits, group});
      const std::vector<float> want = test.expected();
      for_each_variant([&](const Kernels& kernels) {
        for (int rows = 1; rows <= kRows; rows++) {
          CHECK(kernels.matmul_panel || kernels.min_interleaved_rows == 1);
          CHECK(!kernels.matmul_panel || test.products(kernels, rows) == want);
          if (!kernels.matmul_panel_interleaved) continue;
          const std::vector<float> interleaved = test.interleaved_products(kernels, rows);
          CHECK(std::equal(interleaved.begin(), interleaved.end(), want.begin()));
        }
      });
    }
}

}  // namespace estream::tests
