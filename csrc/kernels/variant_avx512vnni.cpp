#define ESTREAM_VARIANT avx512vnni
#include "kernels/multiply_avx512.h"
#include "kernels/variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_avx512vnni = avx512vnni::blocked_table("avx512vnni");
}
