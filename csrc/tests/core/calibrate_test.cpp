// Codes chosen for known inputs.
#include "core/calibrate.h"

#include <algorithm>
#include <numeric>

#include "core/pack.h"
#include "tests/harness.h"

namespace estream::tests {

namespace {

struct Chosen {
  std::vector<int8_t> codes;
  std::vector<uint16_t> scales;
};

// Inputs that move together, so that one code can make up for another's error.
struct CalibrationTest {
  static constexpr int kRows = 45, kInputs = 128, kColumns = 124;
  const int group;
  Random random{11};
  std::vector<float> weights = random.values(kRows * kColumns);
  std::vector<float> moments = std::vector<float>(kInputs * kInputs), feedback = moments;
  std::vector<int32_t> order = std::vector<int32_t>(kInputs);

  explicit CalibrationTest(int group) : group(group) {
    for (int i = 0; i < kInputs; i++) order[i] = i * 5 % kInputs, moments[i * kInputs + i] = 0.05f;
    for (int sample = 0; sample < 60; sample++) {
      std::vector<float> x = random.values(kInputs);
      for (int i = 1; i < kInputs; i++) x[i] = 0.6f * x[i - 1] + 0.4f * x[i];
      for (int i = 0; i < kInputs * kInputs; i++) moments[i] += x[i / kInputs] * x[i % kInputs] / 60.0f;
    }
    find_feedback();
  }
  // In the order given, moments = M^T D M with M of ones on the diagonal and the feedback below it.
  void find_feedback() {
    std::vector<double> h(kInputs * kInputs);
    for (int i = 0; i < kInputs * kInputs; i++) h[i] = moments[order[i / kInputs] * kInputs + order[i % kInputs]];
    for (int k = kInputs - 1; k > 0; k--) {
      const double* row = &h[k * kInputs];
      for (int j = 0; j < k; j++) feedback[k * kInputs + j] = static_cast<float>(row[j] / row[k]);
      for (int i = 0; i < k; i++)
        for (int j = 0; j < k; j++) h[i * kInputs + j] -= row[i] * row[j] / row[k];
    }
  }
  Chosen choose(const Kernels& kernels, int threads) const {
    ThreadPool pool(threads);
    Chosen c = {std::vector<int8_t>(kRows * kInputs), std::vector<uint16_t>(kRows * kInputs / group)};
    choose_codes(pool, kernels, weights.data(), kRows, kColumns, {moments.data(), feedback.data(), order.data(), kInputs},
                 group, c.codes.data(), c.scales.data());
    return c;
  }
  // The weights [kRows, kInputs] that codes and scales stand for.
  std::vector<double> stand_for(const Chosen& c) const {
    std::vector<double> values(kRows * kInputs);
    for (size_t i = 0; i < values.size(); i++) values[i] = c.codes[i] * half(c.scales[i / group]);
    return values;
  }
  // Those of codes that were chosen for each weight alone.
  std::vector<double> nearest() const {
    ThreadPool pool(1);
    PackedMatrix m = {nullptr, kRows, kInputs, 4, group};
    std::vector<uint8_t> bytes(m.bytes());
    m.data = bytes.data();
    std::vector<int32_t> rows(kRows);
    std::iota(rows.begin(), rows.end(), 0);
    WeightRows source{WeightType::float32, kColumns, {}};
    for (int r = 0; r < kRows; r++) source.rows.push_back(reinterpret_cast<const uint8_t*>(&weights[r * kColumns]));
    CHECK(pack_matrix(pool, *find_kernels("portable"), source, rows.data(), m, bytes.data()).bad_row == -1);
    std::vector<float> values(kRows * kInputs);
    unpack_matrix(m, values.data());
    return {values.begin(), values.end()};
  }
  // How much the products with such inputs change.
  double loss(const std::vector<double>& chosen) const {
    double total = 0.0;
    for (int r = 0; r < kRows; r++) {
      std::vector<double> error(kInputs);
      for (int i = 0; i < kInputs; i++)
        error[i] = (i < kColumns ? double{weights[r * kColumns + i]} : 0.0) - chosen[r * kInputs + i];
      for (int i = 0; i < kInputs * kInputs; i++) total += error[i / kInputs] * error[i % kInputs] * moments[i];
    }
    return total;
  }
  // Of a normal fp16 number.
  static double half(uint16_t bits) {
    const double magnitude = std::ldexp(1024 + (bits & 0x3ff), (bits >> 10 & 31) - 25);
    return bits >> 15 ? -magnitude : magnitude;
  }
};

}  // namespace

void calibrated_codes_are_the_same_and_better() {
  for (const int group : {32, 64, 128}) {
    const CalibrationTest test(group);
    const Chosen first = test.choose(*find_kernels("portable"), 1);
    CHECK(std::all_of(first.codes.begin(), first.codes.end(), [](int8_t code) { return code >= -8 && code <= 7; }));
    CHECK(test.loss(test.stand_for(first)) < 0.7 * test.loss(test.nearest()));
    for_each_variant([&](const Kernels& kernels) {
      const Chosen again = test.choose(kernels, 3);
      CHECK(again.codes == first.codes && again.scales == first.scales);
    });
  }
}

}  // namespace estream::tests
