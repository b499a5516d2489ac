// Fills the table of one variant; the file that includes this has named the variant and included its tile.
#pragma once
#define XXH_INLINE_ALL
#include "../third_party/xxhash/xxhash.h"
#include "attention.inl.h"
#include "matmul.inl.h"
#include "pack.inl.h"

namespace estream::ESTREAM_VARIANT {

inline uint64_t checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

constexpr Kernels table(const char* name) {
  return {name, rms_norm,   quantize_row, rope,    matmul_panel, matmul_panel_float, router, attention,
          add,  pack_group, checksum,     nullptr, nullptr};
}

#if defined(__AMX_INT8__)
constexpr Kernels tiled_table(const char* name) {
  Kernels kernels = table(name);
  kernels.tile_rows = tile_rows;
  kernels.matmul_panel_tiled = matmul_panel_tiled;
  return kernels;
}
#endif

}  // namespace estream::ESTREAM_VARIANT
