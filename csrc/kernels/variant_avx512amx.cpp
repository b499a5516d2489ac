#define ESTREAM_VARIANT avx512amx
#include "kernels/tile_avx512vnni.h"
// Tiles are built on top of the product by rows.
#include "kernels/attention_amx.h"
#include "kernels/variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_avx512amx = avx512amx::tiled_table("avx512amx");
}
