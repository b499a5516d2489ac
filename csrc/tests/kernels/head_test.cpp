// Reductions of logits: totals of softmax and the likeliest ids, slice after slice.
#include <numeric>

#include "tests/harness.h"

namespace estream::tests {

namespace {

constexpr int kIds = 1000;

// Every variant and every cut of the vocabulary against float64.
void check_totals(const Kernels& kernels, const std::vector<float>& logits, const std::vector<int>& cuts) {
  double total[2] = {-INFINITY, 0.0};
  for (size_t i = 0; i + 1 < cuts.size(); i++)
    kernels.head.softmax_total(logits.data() + cuts[i], cuts[i + 1] - cuts[i], total);
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(x - largest);
  CHECK(total[0] == largest && std::fabs(total[1] / sum - 1.0) < 1e-6);
}

void check_likeliest(const Kernels& kernels, const std::vector<float>& logits, const std::vector<int>& cuts, int wanted) {
  std::vector<int32_t> ids(wanted), order(kIds);
  std::vector<float> values(wanted, -INFINITY);
  for (size_t i = 0; i + 1 < cuts.size(); i++)
    kernels.head.likeliest(logits.data() + cuts[i], cuts[i + 1] - cuts[i], cuts[i], wanted, ids.data(), values.data());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  for (int i = 0; i < wanted; i++) CHECK(ids[i] == order[i] && values[i] == logits[order[i]]);
}

}  // namespace

void logits_are_reduced_slice_by_slice() {
  Random random{11};
  std::vector<float> logits = random.values(kIds);
  for (float& x : logits) x = std::nearbyint(x * 40.0f);  // many are equal
  for_each_variant([&](const Kernels& kernels) {
    for (const auto& cuts : {std::vector<int>{0, kIds}, {0, 1, 64, 65, 130, kIds}, {0, 500, kIds}}) {
      check_totals(kernels, logits, cuts);
      for (const int wanted : {1, 3, kIds}) check_likeliest(kernels, logits, cuts, wanted);
    }
    for (const int at : {0, 63, 500, 999})
      for (const float strange : {NAN, INFINITY, -INFINITY}) {
        std::vector<float> wrong = logits;
        wrong[at] = strange;
        double total[2] = {-INFINITY, 0.0};
        for (const int half : {0, 500}) kernels.head.softmax_total(wrong.data() + half, 500, total);
        CHECK(std::isnan(total[1]));
      }
  });
}

}  // namespace estream::tests
