#define ESTREAM_VARIANT neon_dot
#include "kernels/microkernel_neon_dot.h"
#include "kernels/variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_neon_dot = neon_dot::table("neondot");
}
