#define ESTREAM_VARIANT avx512bf16
#include "tile_avx512vnni.h"
#include "variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_avx512bf16 = avx512bf16::bf16_table("avx512bf16");
}
