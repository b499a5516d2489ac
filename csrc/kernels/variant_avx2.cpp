#define ESTREAM_VARIANT avx2
#include "kernels/multiply_avx2.h"
#include "kernels/variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_avx2 = avx2::blocked_table("avx2");
}
