#define ESTREAM_VARIANT avxvnni
#include "multiply_avx2.h"
#include "variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_avxvnni = avxvnni::blocked_table("avxvnni");
}
