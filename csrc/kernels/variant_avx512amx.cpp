#define ESTREAM_VARIANT avx512amx
#include "kernels/microkernel_avx512vnni.h"
// After the micro-kernel, which multiplies few rows.
#include "kernels/attention_amx.h"
#include "kernels/variant.inl.h"

namespace estream {
extern constinit const Kernels kernels_avx512amx = avx512amx::amx_table("avx512amx");
}
