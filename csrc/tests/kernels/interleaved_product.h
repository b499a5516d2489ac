// Rows in the order in which a variant multiplies many of them.
#pragma once
#include <vector>

#include "kernels/kernels.h"

namespace estream::tests {

struct InterleavedProduct {
  const Kernels& kernels;
  const int rows, blocks = (rows + kernels.interleaved_rows - 1) / kernels.interleaved_rows,
                  padded = blocks * kernels.interleaved_rows;
  std::vector<int8_t> codes;
  std::vector<float> scales, sums = std::vector<float>(padded * kPanel);
  std::vector<int32_t> initial_sums;
  const InterleavedRows tiles;

  InterleavedProduct(const Kernels& kernels, const QuantizedRows& x, const int32_t* x_rows, int rows, int bits)
      : kernels(kernels),
        rows(rows),
        codes(padded * ((x.columns + 63) / 64 * 64)),
        scales(padded * x.groups),
        initial_sums(padded * x.groups),
        tiles{codes.data(), scales.data(), initial_sums.data(), blocks} {
    for (int block = 0; block < blocks; block++) kernels.interleave_rows(x, x_rows, rows, bits, block, tiles);
  }
  void multiply(const PackedMatrix& w, int panel, const PanelOutput& out) {
    kernels.matmul_panel_interleaved(w, panel, tiles, rows, out, sums.data());
  }
};

}  // namespace estream::tests
