#define ESTREAM_VARIANT portable
#include "tile_portable.h"
#include "variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_portable = portable::table("portable");
}
