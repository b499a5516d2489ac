// Linear attention on the CPU: gates, convolution and the delta rule.
#include <algorithm>
#include <cmath>

#include "core/cpu_device.h"

namespace estream {

namespace {

constexpr int kSmallRows = 16;

int blocks(int count, int block) { return (count + block - 1) / block; }

}  // namespace

void CpuDevice::causal_conv(Rows x, const int32_t* positions, const float* weight, int conv_kernel_size, Rows y) {
  const Timed timed(*this, Work::linear_attention);
  const int columns = static_cast<int>(y.stride), before = x.rows - y.rows;
  pool_.run(blocks(y.rows, kSmallRows), [&](int task, int) {
    const int end = std::min(y.rows, (task + 1) * kSmallRows);
    for (int64_t r = task * kSmallRows; r < end; r++)
      kernels_.linear.causal_conv(x.data + (r + before) * x.stride, x.stride, std::min(positions[r], conv_kernel_size - 1),
                                  weight, conv_kernel_size, y.data + r * y.stride, columns);
  });
}

void CpuDevice::gate(Rows x, Rows gates, bool with_silu, Rows y) {
  const Timed timed(*this, Work::linear_attention);
  const int columns = static_cast<int>(gates.stride);
  pool_.run(blocks(y.rows, kSmallRows), [&](int task, int) {
    const int end = std::min(y.rows, (task + 1) * kSmallRows);
    for (int64_t r = task * kSmallRows; r < end; r++) {
      float* row = y.data + r * y.stride;
      kernels_.linear.gate_row(x.data + r * x.stride, gates.data + r * gates.stride, with_silu, row, columns);
      std::fill(row + columns, row + y.stride, 0.0f);
    }
  });
}

void CpuDevice::delta_rule(const DeltaShape& shape, Rows mixed, Rows decays_and_rates, const int32_t* positions, float* state,
                           Rows out) {
  const Timed timed(*this, Work::linear_attention);
  if (mixed.rows == 0) return;  // an empty array may have no address to count from
  const int64_t keys = int64_t{shape.key_heads} * shape.key_dim;
  pool_.run(shape.value_heads, [&](int head, int thread) {
    const float* query = mixed.data + int64_t{head / (shape.value_heads / shape.key_heads)} * shape.key_dim;
    kernels_.linear.delta_rule({query, query + keys, mixed.data + 2 * keys + int64_t{head} * shape.value_dim, mixed.stride,
                                decays_and_rates.data + head, decays_and_rates.data + shape.value_heads + head,
                                decays_and_rates.stride, positions, mixed.rows, shape.key_dim, shape.value_dim,
                                state + int64_t{head} * shape.key_dim * shape.value_dim,
                                out.data + int64_t{head} * shape.value_dim, out.stride, thread_scratch(thread)});
  });
}

void delta_gates(Rows x, const float* log_rates, const float* bias) {
  const int heads = static_cast<int>(x.stride / 2);
  for (int64_t r = 0; r < x.rows; r++) {
    float* row = x.data + r * x.stride;
    for (int h = 0; h < heads; h++) {
      const float rate = row[h], step = row[heads + h] + bias[h];
      const float softplus = step > 20.0f ? step : std::log1p(std::exp(step));
      row[h] = std::exp(-std::exp(log_rates[h]) * softplus);
      row[heads + h] = 1.0f / (1.0f + std::exp(-rate));
    }
  }
}

}  // namespace estream
