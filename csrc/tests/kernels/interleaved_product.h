// The product of interleaved rows, as the CPU device calls it.
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
  const InterleavedRows interleaved;

  InterleavedProduct(const Kernels& kernels, const QuantizedRows& x, const int32_t* x_rows, int rows, int bits)
      : kernels(kernels),
        rows(rows),
        codes(padded * ((x.columns + 63) / 64 * 64)),
        scales(padded * x.groups),
        initial_sums(padded * x.groups),
        interleaved{codes.data(), scales.data(), initial_sums.data(), blocks} {
    for (int block = 0; block < blocks; block++) kernels.interleave_rows(x, x_rows, rows, bits, block, interleaved);
  }
  void multiply(const PackedMatrix& w, int panel, const PanelOutput& out) {
    kernels.matmul_panel_interleaved(w, panel, interleaved, rows, out, sums.data());
  }
};

}  // namespace estream::tests
