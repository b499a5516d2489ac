#include "routing.h"

#include <algorithm>
#include <cmath>

namespace estream {

void route(const Routing& routing, const float* logits, int rows, int lanes, int32_t* ids, float* weights) {
  const int k = routing.top_k;
  for (int r = 0; r < rows; r++) {
    const float* row = logits + static_cast<int64_t>(r) * lanes;
    int32_t* chosen = ids + static_cast<int64_t>(r) * k;
    float* chosen_weights = weights + static_cast<int64_t>(r) * k;
    const float largest = *std::max_element(row, row + routing.experts);
    float total = 0.0f;
    int found = 0;
    for (int e = 0; e < routing.experts; e++) {
      const float weight = std::exp(row[e] - largest);
      total += weight;
      if (found == k && weight <= chosen_weights[k - 1]) continue;
      int at = found < k ? found++ : k - 1;
      for (; at > 0 && chosen_weights[at - 1] < weight; at--) {
        chosen[at] = chosen[at - 1];
        chosen_weights[at] = chosen_weights[at - 1];
      }
      chosen[at] = e;
      chosen_weights[at] = weight;
    }
    float divisor = total;
    if (routing.normalise) {
      divisor = 0.0f;
      for (int i = 0; i < k; i++) divisor += chosen_weights[i];
    }
    for (int i = 0; i < k; i++) chosen_weights[i] /= divisor;
  }
}

}  // namespace estream
