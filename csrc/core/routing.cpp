#include "core/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace estream {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// The scores of one token. `scores` become the weights, `choice_scores` decide which experts are chosen.
struct Token {
  std::vector<float> logits, scores, choice_scores;

  explicit Token(int experts) : logits(experts), scores(experts), choice_scores(experts) {}

  void read(const Routing& routing, const RouterBiases& biases, const float* row) {
    const int experts = routing.experts;
    for (int e = 0; e < experts; e++) logits[e] = biases.logits ? row[e] + biases.logits[e] : row[e];
    const float largest = *std::max_element(logits.begin(), logits.end());
    for (int e = 0; e < experts; e++) {
      scores[e] = routing.scoring == Scoring::sigmoid ? sigmoid(logits[e]) : std::exp(logits[e] - largest);
      choice_scores[e] = biases.correction ? scores[e] + biases.correction[e] : scores[e];
    }
  }
};

// Excludes the experts outside the best groups.
void keep_best_groups(const Routing& routing, std::vector<float>& choice_scores) {
  const int size = routing.experts / routing.groups;
  float group_scores[kMostGroups];
  for (int g = 0; g < routing.groups; g++) {
    float best = kMinusInfinity, second = kMinusInfinity;
    for (int e = g * size; e < (g + 1) * size; e++) {
      second = std::max(second, std::min(best, choice_scores[e]));
      best = std::max(best, choice_scores[e]);
    }
    group_scores[g] = routing.scoring == Scoring::sigmoid && size > 1 ? best + second : best;
  }
  bool kept[kMostGroups] = {};
  for (int i = 0; i < routing.top_groups; i++) {
    int best = -1;
    for (int g = 0; g < routing.groups; g++)
      if (!kept[g] && (best < 0 || group_scores[g] > group_scores[best])) best = g;
    kept[best] = true;
  }
  for (int e = 0; e < routing.experts; e++)
    if (!kept[e / size]) choice_scores[e] = kMinusInfinity;
}

// The best experts, by falling score.
void choose(const Token& token, int top_k, int32_t* ids) {
  int found = 0;
  for (int e = 0; e < static_cast<int>(token.choice_scores.size()); e++) {
    const float score = token.choice_scores[e];
    if (found == top_k && score <= token.choice_scores[ids[top_k - 1]]) continue;
    int at = found < top_k ? found++ : top_k - 1;
    for (; at > 0 && token.choice_scores[ids[at - 1]] < score; at--) ids[at] = ids[at - 1];
    ids[at] = e;
  }
}

// SparseMixer: the expert of the largest logit other than expert `without`. Its weight is a softmax over the logits near it.
int mix(const Token& token, float jitter, int without, float* weight) {
  const int experts = static_cast<int>(token.logits.size());
  int best = -1;
  for (int e = 0; e < experts; e++)
    if (e != without && (best < 0 || token.logits[e] > token.logits[best])) best = e;
  const float top = token.logits[best];
  float sum = 0.0f;
  for (int e = 0; e < experts; e++) {
    const float logit = token.logits[e], size = std::max(std::fabs(logit), top);
    if (e != without && !((top - logit) / size > 2.0f * jitter)) sum += std::exp(logit - top);
  }
  *weight = 1.0f / sum;
  return best;
}

void route_token(const Routing& routing, Token& token, int32_t* ids, float* weights) {
  const int k = routing.top_k;
  if (routing.scoring == Scoring::sparsemixer) {
    for (int i = 0; i < k; i++) ids[i] = mix(token, routing.jitter, i == 0 ? -1 : ids[0], weights + i);
    return;
  }
  if (routing.groups > 1) keep_best_groups(routing, token.choice_scores);
  choose(token, k, ids);
  float divisor = routing.normalise || routing.scoring == Scoring::softmax ? 0.0f : 1.0f;
  if (routing.normalise)
    for (int i = 0; i < k; i++) divisor += token.scores[ids[i]];
  else if (routing.scoring == Scoring::softmax)
    for (const float score : token.scores) divisor += score;
  // The sigmoids of very negative logits can all be zero.
  divisor = std::max(divisor, std::numeric_limits<float>::min());
  for (int i = 0; i < k; i++) weights[i] = token.scores[ids[i]] / divisor * routing.scaling;
}

}  // namespace

void route(const Routing& routing, const RouterBiases& biases, const float* logits, int rows, int columns, int32_t* ids,
           float* weights) {
  Token token(routing.experts);
  for (int64_t r = 0; r < rows; r++) {
    token.read(routing, biases, logits + r * columns);
    route_token(routing, token, ids + r * routing.top_k, weights + r * routing.top_k);
  }
}

void list_by_expert(const int32_t* ids, const float* weights, int rows, int top_k, int experts, int32_t* tokens, float* sorted,
                    int64_t* starts) {
  const int64_t count = int64_t{rows} * top_k;
  std::fill(starts, starts + experts + 1, 0);
  for (int64_t i = 0; i < count; i++) starts[ids[i] + 1]++;
  for (int e = 0; e < experts; e++) starts[e + 1] += starts[e];
  std::vector<int64_t> next(starts, starts + experts);
  for (int64_t i = 0; i < count; i++) {
    const int64_t to = next[ids[i]]++;
    tokens[to] = static_cast<int32_t>(i / top_k);
    sorted[to] = weights[i];
  }
}

void sigmoid_gates(const float* logits, int rows, int columns, int column, float* gates) {
  for (int64_t r = 0; r < rows; r++) gates[r] = sigmoid(logits[r * columns + column]);
}

}  // namespace estream
