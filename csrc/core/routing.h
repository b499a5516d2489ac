// From router logits to the experts of each token.
#pragma once
#include <cstdint>

namespace estream {

enum class Scoring {
  softmax,      // over all experts
  sigmoid,      // of each expert alone
  sparsemixer,  // two experts, each weighted against those whose logits are near its own
};

// How experts are chosen. With groups > 1, consecutive experts form equal groups, and only experts of the `top_groups` best
// groups may be chosen. A group's score is the best score in it (softmax) or the sum of the two best (sigmoid).
struct Routing {
  int experts;
  int top_k;
  Scoring scoring = Scoring::softmax;
  bool normalise = false;  // make the weights of a token's experts sum to 1, before scaling
  float scaling = 1.0f;
  int groups = 1;
  int top_groups = 1;
  float jitter = 0.0f;  // sparsemixer: half the relative distance from which on a logit is ignored
};
constexpr int kMostGroups = 64;

// Float arrays [experts] of one layer's router, or null.
struct RouterBiases {
  const float* logits = nullptr;      // added to the logits
  const float* correction = nullptr;  // added to the scores that choose experts, but not to their weights
};

// Chooses experts from logits [rows, columns], whose columns after the experts are ignored. Fills ids and weights [rows,
// top_k], by falling score, and by rising id where scores are equal. Sources: softmax as in transformers' OlmoeTopKRouter;
// groups by DeepSeek-V2 (arXiv 2405.04434) and, with sigmoid and correction, DeepSeek-V3 (arXiv 2412.19437); sparsemixer at
// inference by GRIN (arXiv 2409.12136).
void route(const Routing& routing, const RouterBiases& biases, const float* logits, int rows, int columns, int32_t* ids,
           float* weights);

// Sorts ids and weights [rows, top_k] by expert: fills tokens and sorted [rows * top_k], of which expert e owns
// [starts[e], starts[e + 1]), with its tokens in rising order.
void list_by_expert(const int32_t* ids, const float* weights, int rows, int top_k, int experts, int32_t* tokens, float* sorted,
                    int64_t* starts);

// gates[r] = sigmoid(logits[r, column]).
void sigmoid_gates(const float* logits, int rows, int columns, int column, float* gates);

}  // namespace estream
