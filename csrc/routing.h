// From router logits to the experts of each token.
#pragma once
#include <cstdint>

namespace estream {

struct Routing {
  int experts;
  int top_k;
  bool normalise;  // make the chosen weights of a token sum to 1
};

// logits [rows, lanes] -> ids and weights [rows, top_k], by falling weight, equal weights by rising id.
// Weights are the softmax over all experts: as in transformers' OlmoeTopKRouter.
void route(const Routing& routing, const float* logits, int rows, int lanes, int32_t* ids, float* weights);

}  // namespace estream
