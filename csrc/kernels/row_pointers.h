// The rows of quantised activations that one tile multiplies.
#pragma once
#include <cstdint>

namespace estream {

template <int R>
struct RowPointers {
  const int8_t* codes[R];
  const float* scales[R];  // one per group
  const int32_t* sums[R];  // sum of the codes of each group: weights are stored with an offset, which this takes back
};

}  // namespace estream
