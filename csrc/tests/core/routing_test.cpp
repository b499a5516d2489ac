// From logits to experts.
#include "core/routing.h"

#include <algorithm>
#include <cmath>

#include "tests/harness.h"

namespace estream::tests {

namespace {

void check_routing(const float* logits, int experts, int top, bool normalise, const int32_t* ids, const float* weights) {
  std::vector<int32_t> order(experts);
  for (int e = 0; e < experts; e++) order[e] = e;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  CHECK(std::equal(ids, ids + top, order.begin()));
  double total = 0.0;
  for (int i = 0; i < (normalise ? top : experts); i++) total += std::exp(double{logits[order[i]]});
  for (int i = 0; i < top; i++) CHECK(std::fabs(weights[i] - std::exp(double{logits[order[i]]}) / total) < 1e-6);
}

}  // namespace

void routing_breaks_ties_by_id() {
  constexpr int kRows = 40, kExperts = 10, kColumns = 16, kTop = 4;
  Random random{8};
  std::vector<float> logits(kRows * kColumns, 99.0f), weights(kRows * kTop);  // columns after the experts do not count
  std::vector<int32_t> ids(kRows * kTop);
  for (int i = 0; i < kRows * kExperts; i++)
    logits[i / kExperts * kColumns + i % kExperts] = static_cast<float>(random.below(4));
  for (const bool normalise : {false, true}) {
    route({kExperts, kTop, Scoring::softmax, normalise}, {}, logits.data(), kRows, kColumns, ids.data(), weights.data());
    for (int r = 0; r < kRows; r++)
      check_routing(&logits[r * kColumns], kExperts, kTop, normalise, &ids[r * kTop], &weights[r * kTop]);
  }
}

void tokens_are_listed_by_expert() {
  constexpr int kRows = 30, kTop = 3, kExperts = 7, kUnused = 4;
  Random random{10};
  std::vector<int32_t> ids(kRows * kTop), tokens(kRows * kTop);
  std::vector<float> weights = random.values(kRows * kTop), sorted(kRows * kTop);
  std::vector<int64_t> starts(kExperts + 1);
  for (int32_t& id : ids) id = random.below(kExperts - 1), id += id >= kUnused;
  list_by_expert(ids.data(), weights.data(), kRows, kTop, kExperts, tokens.data(), sorted.data(), starts.data());
  CHECK(starts[0] == 0 && starts[kExperts] == kRows * kTop && starts[kUnused] == starts[kUnused + 1]);
  for (int e = 0; e < kExperts; e++) {
    int64_t at = starts[e];
    for (int i = 0; i < kRows * kTop; i++) {
      if (ids[i] != e) continue;
      CHECK(at < starts[e + 1] && tokens[at] == i / kTop && sorted[at] == weights[i]);
      at++;
    }
    CHECK(at == starts[e + 1]);
  }
}

}  // namespace estream::tests
