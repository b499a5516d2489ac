#include "core/pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

namespace estream {

namespace {

constexpr int kMaxGroup = 128;

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  return from_bits(sign | magnitude << 13) * 0x1p112f;
}

size_t bytes_of(WeightType type) { return type == WeightType::float32 ? 4 : 2; }

void load_weights(WeightType type, const void* from, int count, float* to) {
  const auto* halves = static_cast<const uint16_t*>(from);
  if (type == WeightType::float32)
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof *to);
  else if (type == WeightType::float16)
    for (int k = 0; k < count; k++) to[k] = half_to_float(halves[k]);
  else
    for (int k = 0; k < count; k++) to[k] = from_bits(static_cast<uint32_t>(halves[k]) << 16);
}

// Writes the codes of one output of a block: four bytes in every 128.
void put_codes(uint8_t* block, int bits, int group, int output, const int8_t* codes) {
  const int step = 32 / bits;
  for (int k = 0; k < group; k += step) {
    uint32_t low, high = 0;
    std::memcpy(&low, codes + k, sizeof low);
    if (bits == 8) {
      low ^= 0x80808080u;  // + 128 in each byte
    } else {
      // + 8 in each low half: flips the highest bit of a nibble in two's complement.
      std::memcpy(&high, codes + k + 4, sizeof high);
      low = ((low & 0x0f0f0f0fu) ^ 0x08080808u) | ((high & 0x0f0f0f0fu) ^ 0x08080808u) << 4;
    }
    std::memcpy(block + k / step * 128 + output * 4, &low, sizeof low);
  }
}

int get_code(const uint8_t* block, int bits, int output, int k) {
  if (bits == 8) return block[k / 4 * 128 + output * 4 + k % 4] - 128;
  const uint8_t byte = block[k / 8 * 128 + output * 4 + k % 4];
  return (k % 8 < 4 ? byte & 15 : byte >> 4) - 8;
}

void operator+=(PackingError& sum, const PackingError& more) {
  sum.squared_error += more.squared_error;
  sum.squared += more.squared;
}

PackingError sum_of(const std::vector<PackingError>& panels) {
  PackingError sum{};
  for (const PackingError& panel : panels) sum += panel;
  return sum;
}

// The error of one output of a block. Several accumulators keep additions from waiting for one another.
PackingError group_error(const uint8_t* block, const PackedMatrix& m, int output, const float* values, int count) {
  constexpr int kAccumulators = 8;
  uint16_t bits;
  std::memcpy(&bits, block + 4 * m.bits * m.group + 2 * output, sizeof bits);
  const float scale = half_to_float(bits);
  float codes[kMaxGroup];
  for (int k = 0; k < count; k++) codes[k] = static_cast<float>(get_code(block, m.bits, output, k));
  double squared_error[kAccumulators] = {}, squared[kAccumulators] = {};
  for (int k = 0; k < count; k++) {
    const double value = values[k], error = static_cast<double>(scale * codes[k]) - value;
    squared_error[k % kAccumulators] += error * error;
    squared[k % kAccumulators] += value * value;
  }
  PackingError sum{};
  for (int i = 0; i < kAccumulators; i++) {
    sum.squared_error += squared_error[i];
    sum.squared += squared[i];
  }
  return sum;
}

// The smallest row seen by any thread.
class FirstRow {
 public:
  void see(int64_t row) {
    for (int64_t seen = row_.load(); row < seen && !row_.compare_exchange_weak(seen, row);) {
    }
  }
  int64_t get() const { return row_.load() == INT64_MAX ? -1 : row_.load(); }

 private:
  std::atomic<int64_t> row_{INT64_MAX};
};

bool is_finite_half(uint16_t half) { return (half & 0x7c00u) != 0x7c00u; }

}  // namespace

PackingResult pack_matrix(ThreadPool& pool, const Kernels& kernels, const WeightRows& source, const int32_t* order,
                          const PackedMatrix& m, uint8_t* to) {
  static constexpr float kZeros[kMaxGroup] = {};
  FirstRow bad;
  std::vector<PackingError> panels(static_cast<size_t>(m.panels()));
  pool.run(m.panels(), [&](int panel, int) {
    const int first = panel * kPanel, outputs = std::min(kPanel, m.outputs - first);
    double squared_error[kPanel] = {}, squared[kPanel] = {};
    for (int g = 0; g < m.groups(); g++) {
      PackBlock block{};
      block.type = source.type;
      block.bits = m.bits;
      block.group = m.group;
      block.to = to + panel * m.panel_bytes() + g * m.block_bytes();
      float padded[kPanel][kMaxGroup];
      const int count = std::min(m.group, source.columns - g * m.group);
      if (count < m.group) block.type = WeightType::float32;
      for (int output = 0; output < kPanel; output++) {
        const int64_t row = output < outputs ? order[first + output] : -1;
        block.rows[output] = kZeros;
        if (row < 0 || count <= 0) continue;
        const uint8_t* weights = source.rows[row] + g * m.group * bytes_of(source.type);
        block.rows[output] = weights;
        if (count == m.group) continue;
        std::fill_n(padded[output], m.group, 0.0f);
        load_weights(source.type, weights, count, padded[output]);
        block.rows[output] = padded[output];
      }
      kernels.pack_block(block);
      uint16_t scales[kPanel];
      std::memcpy(scales, block.to + 4 * m.bits * m.group, sizeof scales);
      for (int output = 0; output < kPanel; output++) {
        squared_error[output] += block.squared_error[output];
        squared[output] += block.squared[output];
        if (!std::isfinite(block.squared[output]) || !is_finite_half(scales[output])) bad.see(order[first + output]);
      }
    }
    for (int output = 0; output < kPanel; output++) panels[panel] += {squared_error[output], squared[output]};
  });
  return {bad.get(), sum_of(panels)};
}

int64_t pack_codes(ThreadPool& pool, const CodeRows& source, const int32_t* order, const PackedMatrix& m, uint8_t* to) {
  FirstRow bad;
  const int lowest = m.bits == 4 ? -8 : -127, highest = m.bits == 4 ? 7 : 127, source_groups = source.columns / m.group;
  pool.run(m.panels(), [&](int panel, int) {
    for (int output = 0; output < kPanel; output++) {
      const int index = panel * kPanel + output;
      const int64_t row = index < m.outputs ? order[index] : -1;
      for (int g = 0; g < m.groups(); g++) {
        int8_t codes[kMaxGroup] = {};
        uint16_t scale = 0;
        if (row >= 0 && g < source_groups) {
          std::memcpy(codes, source.codes + row * source.columns + g * m.group, static_cast<size_t>(m.group));
          scale = source.scales[row * source_groups + g];
        }
        const auto [low, high] = std::minmax_element(codes, codes + m.group);
        if (*low < lowest || *high > highest || !is_finite_half(scale)) bad.see(row);
        uint8_t* block = to + panel * m.panel_bytes() + g * m.block_bytes();
        put_codes(block, m.bits, m.group, output, codes);
        std::memcpy(block + 4 * m.bits * m.group + 2 * output, &scale, sizeof scale);
      }
    }
  });
  return bad.get();
}

PackingError packing_error(ThreadPool& pool, const WeightRows& source, const int32_t* order, const PackedMatrix& m) {
  std::vector<PackingError> panels(static_cast<size_t>(m.panels()));
  pool.run(m.panels(), [&](int panel, int) {
    for (int output = 0; output < kPanel && panel * kPanel + output < m.outputs; output++) {
      const int64_t row = order[panel * kPanel + output];
      for (int g = 0; row >= 0 && g * m.group < source.columns; g++) {
        float values[kMaxGroup];
        const int count = std::min(m.group, source.columns - g * m.group);
        load_weights(source.type, source.rows[row] + g * m.group * bytes_of(source.type), count, values);
        panels[panel] += group_error(m.data + panel * m.panel_bytes() + g * m.block_bytes(), m, output, values, count);
      }
    }
  });
  return sum_of(panels);
}

void add_column_squares(const WeightRows& source, double* sums) {
  constexpr int kAtOnce = 256;
  float values[kAtOnce];
  for (const uint8_t* row : source.rows)
    for (int first = 0; first < source.columns; first += kAtOnce) {
      const int count = std::min(kAtOnce, source.columns - first);
      load_weights(source.type, row + first * bytes_of(source.type), count, values);
      for (int i = 0; i < count; i++) sums[first + i] += double{values[i]} * values[i];
    }
}

void unpack_matrix(const PackedMatrix& m, float* out) {
  for (int output = 0; output < m.outputs; output++)
    for (int g = 0; g < m.groups(); g++) {
      const int panel_output = output % kPanel;
      const uint8_t* block = m.data + output / kPanel * m.panel_bytes() + g * m.block_bytes();
      uint16_t scale;
      std::memcpy(&scale, block + 4 * m.bits * m.group + 2 * panel_output, sizeof scale);
      for (int k = 0; k < m.group; k++)
        out[static_cast<int64_t>(output) * m.inputs + g * m.group + k] =
            half_to_float(scale) * static_cast<float>(get_code(block, m.bits, panel_output, k));
    }
}

}  // namespace estream
