// The rows of quantised activations that one call of the micro-kernel multiplies.
#pragma once
#include <cstdint>

namespace estream {

template <int R>
struct RowPointers {
  const int8_t* codes[R];
  const float* scales[R];  // one per group
  const int32_t* sums[R];  // the sum of the codes of each group, for the zero-point correction
};

}  // namespace estream
