// From router logits to the experts of each token.
#pragma once
#include <cstdint>

namespace estream {

enum class Scoring {
  softmax,      // over all experts
  sigmoid,      // of each expert alone
  sparsemixer,  // two experts, each weighted against those whose logits are near its own
};

// How experts are chosen. With groups > 1 the experts lie in equal groups in a row, and only those of the `top_groups` best
// groups may be chosen: a group is as good as its best expert (softmax) or its two best together (sigmoid).
struct Routing {
  int experts;
  int top_k;
  Scoring scoring = Scoring::softmax;
  bool normalise = false;  // make the chosen weights of a token sum to 1 before they are scaled
  float scaling = 1.0f;
  int groups = 1;
  int top_groups = 1;
  float jitter = 0.0f;  // sparsemixer: half the relative distance at which a logit no longer counts
};
constexpr int kMostGroups = 64;

// Float arrays [experts] that belong to one layer's router, or null.
struct RouterBiases {
  const float* logits = nullptr;      // added to the logits
  const float* correction = nullptr;  // added to the scores where experts are chosen, not to their weights
};

// logits [rows, lanes] -> ids and weights [rows, top_k], by falling score, equal scores by rising id.
// Sources: softmax as in transformers' OlmoeTopKRouter; groups by DeepSeek-V2 (arXiv 2405.04434) and, with sigmoid and
// correction, DeepSeek-V3 (arXiv 2412.19437); sparsemixer at inference by GRIN (arXiv 2409.12136).
void route(const Routing& routing, const RouterBiases& biases, const float* logits, int rows, int lanes, int32_t* ids,
           float* weights);

// Per expert, the tokens that chose it in rising order and their weights: ids and weights [rows, top_k] -> tokens and sorted
// [rows * top_k], of which expert e owns [starts[e], starts[e + 1]).
void list_by_expert(const int32_t* ids, const float* weights, int rows, int top_k, int experts, int32_t* tokens, float* sorted,
                    int64_t* starts);

// gates[r] = sigmoid(logits[r, column]).
void sigmoid_gates(const float* logits, int rows, int lanes, int column, float* gates);

}  // namespace estream
