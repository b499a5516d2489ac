#define ESTREAM_VARIANT avx512bf16
#include "kernels/multiply_avx512.h"
#include "kernels/variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_avx512bf16 = avx512bf16::bf16_table(avx512bf16::blocked_table("avx512bf16"));
}
