// Choosing 4-bit codes for weights whose inputs are known.
#pragma once
#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/kernels.h"

namespace estream {

// What is known of a matrix's inputs; see CalibratedPanel.
struct InputStatistics {
  const float* moments;   // [inputs, inputs]
  const float* feedback;  // [inputs, inputs]
  const int32_t* order;   // [inputs]
  int inputs;
};

// Weights [rows, columns], columns at most the inputs; the rest is zero. Fills codes [rows, inputs] and the fp16 bits of
// scales [rows, inputs / group]. The same bits whatever the number of threads.
void choose_codes(ThreadPool& pool, const Kernels& kernels, const float* weights, int rows, int columns,
                  const InputStatistics& statistics, int group, int8_t* codes, uint16_t* scales);

}  // namespace estream
