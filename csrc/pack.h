// From a checkpoint's weights to the packed layout of a page.
#pragma once
#include <cstdint>

#include "kernels/kernels.h"
#include "thread_pool.h"

namespace estream {

enum class WeightType { float32, float16, bfloat16 };

struct WeightRows {
  const void* data;
  WeightType type;
  int64_t stride;  // elements from row to row
  int columns;     // at most the matrix's inputs; the rest is zero
};

// Fills `to` (whose shape `m` gives): output i of the matrix is source row order[i], or zeros where that is negative.
// Returns the first source row that holds a value which is not finite or too large for an fp16 scale, or -1.
int64_t pack_matrix(ThreadPool& pool, const Kernels& kernels, const WeightRows& source, const int32_t* order,
                    const PackedMatrix& m, uint8_t* to);

// The weights that a packed matrix stands for: out [outputs, inputs], output i to row i.
void unpack_matrix(const PackedMatrix& m, float* out);

}  // namespace estream
