// Chooses 4-bit codes for weights whose inputs are known.
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

// Chooses the codes of weights [rows, columns], where columns is at most the inputs and the missing columns are zero. Fills
// codes [rows, inputs] and scales [rows, inputs / group], the latter as bits of fp16. The number of threads does not change the
// result.
void choose_codes(ThreadPool& pool, const Kernels& kernels, const float* weights, int rows, int columns,
                  const InputStatistics& statistics, int group, int8_t* codes, uint16_t* scales);

}  // namespace estream
