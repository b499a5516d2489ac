#define ESTREAM_VARIANT avxvnni
#include "kernels/multiply_avx2.h"
#include "kernels/variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_avxvnni = avxvnni::blocked_table("avxvnni");
}
