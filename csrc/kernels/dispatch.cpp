// The one place where a kernel variant is chosen.
#include <array>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/kernels.h"
#include "platform/platform.h"

#if defined(ESTREAM_X86_VARIANTS)
#include <cpuid.h>
#endif

namespace estream {

extern const Kernels kernels_portable;
#if defined(ESTREAM_X86_VARIANTS)
extern const Kernels kernels_avx2, kernels_avxvnni, kernels_avx512vnni, kernels_avx512bf16;
#endif
#if defined(ESTREAM_AMX_VARIANT)
extern const Kernels kernels_avx512amx;
#endif
#if defined(ESTREAM_ARM_VARIANTS)
extern const Kernels kernels_neon_dot, kernels_neon_i8mm;
#endif

namespace {

#if defined(ESTREAM_X86_VARIANTS)
// GCC 12's __builtin_cpu_supports does not know AVX-VNNI: leaf 7, subleaf 1, EAX bit 4 (Intel SDM, CPUID).
bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
bool has_avx512_vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
bool has_avx512_bf16() { return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16"); }
#endif
#if defined(ESTREAM_AMX_VARIANT)
// Leaf 7: AMX-BF16 is EDX bit 22, AMX-TILE bit 24, AMX-INT8 bit 25.
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 3) == 3;
}
#endif

struct Variant {
  const Kernels* kernels;
  bool (*supported)();
};

// Fastest first.
const Variant kVariants[] = {
#if defined(ESTREAM_AMX_VARIANT)
    {&kernels_avx512amx, [] { return has_avx512_bf16() && has_amx() && platform::enable_amx(); }},
#endif
#if defined(ESTREAM_X86_VARIANTS)
    {&kernels_avx512bf16, has_avx512_bf16},
    {&kernels_avx512vnni, has_avx512_vnni},
    {&kernels_avxvnni, [] { return has_avx2() && has_avx_vnni(); }},
    {&kernels_avx2, has_avx2},
#endif
#if defined(ESTREAM_ARM_VARIANTS)
    {&kernels_neon_i8mm, [] { return platform::arm_features().dot_product && platform::arm_features().integer_product; }},
    {&kernels_neon_dot, [] { return platform::arm_features().dot_product; }},
#endif
    {&kernels_portable, [] { return true; }},
};
constexpr int kCount = sizeof kVariants / sizeof kVariants[0];

}  // namespace

const char* const* available_kernels() {
  // The list is filled once, because several threads may ask at the same time.
  static const auto names = [] {
    std::array<const char*, kCount + 1> found{};
    int n = 0;
    for (const Variant& v : kVariants)
      if (v.supported()) found[n++] = v.kernels->name;
    return found;
  }();
  return names.data();
}

const Kernels* find_kernels(const char* name) {
  for (const Variant& v : kVariants)
    if (std::strcmp(v.kernels->name, name) == 0 && v.supported()) return v.kernels;
  return nullptr;
}

const Kernels& select_kernels() {
  if (const char* name = std::getenv("ESTREAM_KERNELS"); name && *name) {
    if (const Kernels* kernels = find_kernels(name)) return *kernels;
    std::string names;
    for (const char* const* n = available_kernels(); *n; n++) names += std::string(names.empty() ? "" : ", ") + *n;
    throw std::runtime_error("ESTREAM_KERNELS is '" + std::string(name) + "', but this machine offers " + names);
  }
  return fastest_kernels();
}

const Kernels& fastest_kernels() {
  // The answer is kept: CPUID takes microseconds under a hypervisor, and each row of an embedding asks.
  static const Kernels& fastest = *find_kernels(available_kernels()[0]);
  return fastest;
}

}  // namespace estream
