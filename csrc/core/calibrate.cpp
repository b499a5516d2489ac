#include "core/calibrate.h"

#include <algorithm>
#include <vector>

namespace estream {

namespace {

// The arrays of one panel. Each thread has one set, because a panel of a wide matrix takes megabytes.
struct PanelScratch {
  std::vector<float> weights, codes, errors, scratch, scales, inverses;
  std::vector<uint16_t> halves;

  PanelScratch(int inputs, int group)
      : weights(size_t{kPanel} * inputs),
        codes(weights.size()),
        errors(weights.size()),
        scratch(weights.size()),
        scales(weights.size() / group),
        inverses(scales.size()),
        halves(scales.size()) {}
};

}  // namespace

void choose_codes(ThreadPool& pool, const Kernels& kernels, const float* weights, int rows, int columns,
                  const InputStatistics& statistics, int group, int8_t* codes, uint16_t* scales) {
  const int inputs = statistics.inputs, groups = inputs / group;
  std::vector<PanelScratch> scratch(pool.threads(), PanelScratch(inputs, group));
  pool.run((rows + kPanel - 1) / kPanel, [&](int panel, int thread) {
    PanelScratch& s = scratch[thread];
    const int first = panel * kPanel, count = std::min(kPanel, rows - first);
    std::fill(s.weights.begin(), s.weights.end(), 0.0f);
    for (int output = 0; output < count; output++)
      for (int i = 0; i < columns; i++) s.weights[i * kPanel + output] = weights[int64_t{first + output} * columns + i];
    kernels.calibrate_panel({s.weights.data(), inputs, group, statistics.moments, statistics.feedback, statistics.order,
                             s.codes.data(), s.halves.data(), s.scales.data(), s.inverses.data(), s.errors.data(),
                             s.scratch.data()});
    for (int output = 0; output < count; output++) {
      const int64_t row = first + output;
      for (int i = 0; i < inputs; i++) codes[row * inputs + i] = static_cast<int8_t>(s.codes[i * kPanel + output]);
      for (int g = 0; g < groups; g++) scales[row * groups + g] = s.halves[g * kPanel + output];
    }
  });
}

}  // namespace estream
