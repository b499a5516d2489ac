#include "core/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace estream {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// One token's experts while they are chosen. `scores` are their weights before those are normalised and scaled, `ranks`
// decide which are chosen.
struct Token {
  std::vector<float> logits, scores, ranks;

  explicit Token(int experts) : logits(experts), scores(experts), ranks(experts) {}

  void read(const Routing& routing, const RouterBiases& biases, const float* row) {
    const int experts = routing.experts;
    for (int e = 0; e < experts; e++) logits[e] = biases.logits ? row[e] + biases.logits[e] : row[e];
    const float largest = *std::max_element(logits.begin(), logits.end());
    for (int e = 0; e < experts; e++) {
      scores[e] = routing.scoring == Scoring::sigmoid ? sigmoid(logits[e]) : std::exp(logits[e] - largest);
      ranks[e] = biases.correction ? scores[e] + biases.correction[e] : scores[e];
    }
  }
};

// Takes the experts outside the best groups out of the running.
void keep_best_groups(const Routing& routing, std::vector<float>& ranks) {
  const int size = routing.experts / routing.groups;
  float worth[kMostGroups];
  for (int g = 0; g < routing.groups; g++) {
    float best = kNever, second = kNever;
    for (int e = g * size; e < (g + 1) * size; e++) {
      second = std::max(second, std::min(best, ranks[e]));
      best = std::max(best, ranks[e]);
    }
    worth[g] = routing.scoring == Scoring::sigmoid && size > 1 ? best + second : best;
  }
  bool kept[kMostGroups] = {};
  for (int i = 0; i < routing.top_groups; i++) {
    int best = -1;
    for (int g = 0; g < routing.groups; g++)
      if (!kept[g] && (best < 0 || worth[g] > worth[best])) best = g;
    kept[best] = true;
  }
  for (int e = 0; e < routing.experts; e++)
    if (!kept[e / size]) ranks[e] = kNever;
}

// The best experts by falling rank.
void choose(const Token& token, int top_k, int32_t* ids) {
  int found = 0;
  for (int e = 0; e < static_cast<int>(token.ranks.size()); e++) {
    const float rank = token.ranks[e];
    if (found == top_k && rank <= token.ranks[ids[top_k - 1]]) continue;
    int at = found < top_k ? found++ : top_k - 1;
    for (; at > 0 && token.ranks[ids[at - 1]] < rank; at--) ids[at] = ids[at - 1];
    ids[at] = e;
  }
}

// The expert of the largest logit but for `without`, and its weight among the logits near that one.
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
  if (routing.groups > 1) keep_best_groups(routing, token.ranks);
  choose(token, k, ids);
  float divisor = routing.normalise || routing.scoring == Scoring::softmax ? 0.0f : 1.0f;
  if (routing.normalise)
    for (int i = 0; i < k; i++) divisor += token.scores[ids[i]];
  else if (routing.scoring == Scoring::softmax)
    for (const float score : token.scores) divisor += score;
  // Sigmoids of very small logits can all be zero.
  divisor = std::max(divisor, std::numeric_limits<float>::min());
  for (int i = 0; i < k; i++) weights[i] = token.scores[ids[i]] / divisor * routing.scaling;
}

}  // namespace

void route(const Routing& routing, const RouterBiases& biases, const float* logits, int rows, int lanes, int32_t* ids,
           float* weights) {
  Token token(routing.experts);
  for (int64_t r = 0; r < rows; r++) {
    token.read(routing, biases, logits + r * lanes);
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

void sigmoid_gates(const float* logits, int rows, int lanes, int column, float* gates) {
  for (int64_t r = 0; r < rows; r++) gates[r] = sigmoid(logits[r * lanes + column]);
}

}  // namespace estream
