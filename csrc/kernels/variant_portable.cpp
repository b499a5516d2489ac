#define ESTREAM_VARIANT portable
#include "kernels/microkernel_portable.h"
#include "kernels/variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_portable = portable::table("portable");
}
