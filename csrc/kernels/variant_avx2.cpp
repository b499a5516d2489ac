#define ESTREAM_VARIANT avx2
#include "multiply_avx2.h"
#include "variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_avx2 = avx2::blocked_table("avx2");
}
