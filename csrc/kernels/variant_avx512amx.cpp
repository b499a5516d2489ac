#define ESTREAM_VARIANT avx512amx
#include "tile_avx512vnni.h"
// Tiles are built on top of the product by rows.
#include "attention_amx.h"
#include "variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_avx512amx = avx512amx::tiled_table("avx512amx");
}
