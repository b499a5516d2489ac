#define ESTREAM_VARIANT avx512amx
#include "tile_avx512vnni.h"
// The tiles' panels are built on top of the product by rows.
#include "tile_amx.h"
#include "variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_avx512amx = avx512amx::tiled_table("avx512amx");
}
