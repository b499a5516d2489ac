// Fills the table of one variant. The file that includes this names the variant and includes its micro-kernel first.
#pragma once
#define XXH_INLINE_ALL
#include "third_party/xxhash/xxhash.h"

#include "kernels/attention.inl.h"
#include "kernels/calibrate.inl.h"
#include "kernels/head.inl.h"
#include "kernels/linear.inl.h"
#include "kernels/matmul.inl.h"
#include "kernels/pack.inl.h"
#include "kernels/peak_throughput.inl.h"
#if defined(__AVX512BF16__)
#include "kernels/attention_bf16.inl.h"
#endif

namespace estream::ESTREAM_VARIANT {

inline uint64_t checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

constexpr Kernels table(const char* name) {
  constexpr AttentionKernels float32 = {sizeof(float), kFloatQueryBlock, store_floats, attend_floats};
  constexpr LinearKernels linear = {causal_conv, gate_row, delta_rule};
  constexpr HeadKernels head = {softmax_total, likeliest};
  return {name,
          rms_norm,
          layer_norm,
          quantize_row,
          rope,
          matmul_panel,
          matmul_panel_float,
          router,
          float32,
          float32,
          linear,
          head,
          add,
          pack_block,
          checksum,
          0,
          0,
          nullptr,
          nullptr,
          calibrate_panel,
          {}};
}

#if defined(ESTREAM_BLOCKED)
constexpr Kernels blocked_table(const char* name) {
  Kernels kernels = table(name);
  kernels.interleaved_rows = kBlockRows;
  kernels.min_interleaved_rows = kMinBlockedRows;
  if constexpr (kMinBlockedRows == 1) kernels.matmul_panel = nullptr;
  kernels.interleave_rows = interleave_rows;
  kernels.matmul_panel_interleaved = matmul_panel_interleaved;
  kernels.peak = {int8_peak, float32_peak};
  return kernels;
}
#endif

#if defined(__AVX512BF16__)
constexpr Kernels bf16_table(Kernels kernels) {
  kernels.attention = {sizeof(uint16_t), kQueryBlock, Bfloat16Attention::store, attend<Bfloat16Attention>};
  kernels.peak = {int8_peak, float32_peak, bf16_peak};
  return kernels;
}
#endif

#if defined(__AMX_INT8__)
constexpr Kernels amx_table(const char* name) {
  Kernels kernels = bf16_table(table(name));
  kernels.attention.attend = attend_amx;
  kernels.interleaved_rows = 16;
  kernels.min_interleaved_rows = 8;
  kernels.interleave_rows = interleave_rows;
  kernels.matmul_panel_interleaved = matmul_panel_interleaved;
  kernels.peak = {int8_peak, float32_peak, bf16_peak, amx_int8_peak, amx_bf16_peak};
  return kernels;
}
#endif

}  // namespace estream::ESTREAM_VARIANT
