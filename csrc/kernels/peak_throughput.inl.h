// Measures a variant's peak throughput: loops of nothing but its multiply-add instructions, on registers. Each loop returns the
// operations that it did, where a multiply-add counts as two. Assembly keeps the compiler from removing the work.
#pragma once
#include "kernels/kernels.h"

// `op` is one instruction, in which n stands for the number of its destination register. Each of the twelve chains depends on
// itself alone.
#define ESTREAM_PEAK_LOOP(clear, op)                                                                                     \
  asm volatile(".irp n,0,1,2,3,4,5,6,7,8,9,10,11,14,15\n" clear                                                          \
               "\n.endr\n"                                                                                               \
               "1:\n.irp n,0,1,2,3,4,5,6,7,8,9,10,11\n" op                                                               \
               "\n.endr\n"                                                                                               \
               "dec %0\n\tjnz 1b"                                                                                        \
               : "+r"(rounds)                                                                                            \
               :                                                                                                         \
               : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
                 "xmm14", "xmm15")

namespace estream::ESTREAM_VARIANT {

#if defined(__AVX512VNNI__)

inline int64_t int8_peak(int64_t rounds) {
  const int64_t done = rounds * 12 * 128;
  ESTREAM_PEAK_LOOP("vpxord %%zmm\\n, %%zmm\\n, %%zmm\\n", "vpdpbusd %%zmm14, %%zmm15, %%zmm\\n");
  return done;
}
inline int64_t float32_peak(int64_t rounds) {
  const int64_t done = rounds * 12 * 32;
  ESTREAM_PEAK_LOOP("vpxord %%zmm\\n, %%zmm\\n, %%zmm\\n", "vfmadd231ps %%zmm14, %%zmm15, %%zmm\\n");
  return done;
}

#elif defined(__AVX2__)

inline int64_t int8_peak(int64_t rounds) {
  const int64_t done = rounds * 12 * 64;
#if defined(__AVXVNNI__)
  ESTREAM_PEAK_LOOP("vpxor %%ymm\\n, %%ymm\\n, %%ymm\\n", "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm\\n");
#else
  ESTREAM_PEAK_LOOP("vpxor %%ymm\\n, %%ymm\\n, %%ymm\\n", "vpmaddubsw %%ymm14, %%ymm15, %%ymm\\n");
#endif
  return done;
}
inline int64_t float32_peak(int64_t rounds) {
  const int64_t done = rounds * 12 * 16;
  ESTREAM_PEAK_LOOP("vpxor %%ymm\\n, %%ymm\\n, %%ymm\\n", "vfmadd231ps %%ymm14, %%ymm15, %%ymm\\n");
  return done;
}

#endif

#if defined(__AVX512BF16__)
inline int64_t bf16_peak(int64_t rounds) {
  const int64_t done = rounds * 12 * 64;
  ESTREAM_PEAK_LOOP("vpxord %%zmm\\n, %%zmm\\n, %%zmm\\n", "vdpbf16ps %%zmm14, %%zmm15, %%zmm\\n");
  return done;
}
#endif

#if defined(__AMX_INT8__)
// `multiply` adds products of `inputs` inputs to four tiles.
template <typename Multiply>
inline int64_t amx_peak(int64_t rounds, int inputs, Multiply multiply) {
  configure_tiles<64>();
  _tile_zero(2);
  _tile_zero(4);
  for (int64_t i = 0; i < rounds; i++) multiply();
  _tile_release();
  return rounds * 4 * 2 * 16 * 16 * inputs;
}
inline int64_t amx_int8_peak(int64_t rounds) {
  return amx_peak(rounds, 64, [] {
    _tile_dpbssd(0, 2, 4);
    _tile_dpbssd(1, 2, 4);
    _tile_dpbssd(3, 2, 4);
    _tile_dpbssd(5, 2, 4);
  });
}
inline int64_t amx_bf16_peak(int64_t rounds) {
  return amx_peak(rounds, 32, [] {
    _tile_dpbf16ps(0, 2, 4);
    _tile_dpbf16ps(1, 2, 4);
    _tile_dpbf16ps(3, 2, 4);
    _tile_dpbf16ps(5, 2, 4);
  });
}
#endif

}  // namespace estream::ESTREAM_VARIANT
