#define ESTREAM_VARIANT avx512vnni
#include "tile_avx512vnni.h"
#include "variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_avx512vnni = avx512vnni::table("avx512vnni");
}
