// Rows in the order in which a variant multiplies many of them.
#pragma once
#include <vector>

#include "kernels/kernels.h"

namespace estream::tests {

struct TileOrder {
  const Kernels& kernels;
  const int rows, blocks = (rows + kernels.tiled_rows - 1) / kernels.tiled_rows, padded = blocks * kernels.tiled_rows;
  std::vector<int8_t> codes;
  std::vector<float> scales, sums = std::vector<float>(padded * kPanel);
  std::vector<int32_t> starts;
  const TiledRows tiles;

  TileOrder(const Kernels& kernels, const QuantizedRows& x, const int32_t* x_rows, int rows, int bits)
      : kernels(kernels),
        rows(rows),
        codes(padded * ((x.columns + 63) / 64 * 64)),
        scales(padded * x.groups),
        starts(padded * x.groups),
        tiles{codes.data(), scales.data(), starts.data(), blocks} {
    for (int block = 0; block < blocks; block++) kernels.tile_rows(x, x_rows, rows, bits, block, tiles);
  }
  void multiply(const PackedMatrix& w, int panel, const PanelOutput& out) {
    kernels.matmul_panel_tiled(w, panel, tiles, rows, out, sums.data());
  }
};

}  // namespace estream::tests
