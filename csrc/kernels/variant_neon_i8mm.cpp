#define ESTREAM_VARIANT neon_i8mm
#include "kernels/microkernel_neon_i8mm.h"
#include "kernels/variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_neon_i8mm = neon_i8mm::table("neoni8mm");
}
