#include "pack.h"

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
  const float value = from_bits(magnitude << 13) * 0x1p112f;
  return sign ? -value : value;
}

float weight_at(const WeightRows& source, int64_t index) {
  switch (source.type) {
    case WeightType::float32:
      return static_cast<const float*>(source.data)[index];
    case WeightType::float16:
      return half_to_float(static_cast<const uint16_t*>(source.data)[index]);
    case WeightType::bfloat16:
      return from_bits(static_cast<uint32_t>(static_cast<const uint16_t*>(source.data)[index]) << 16);
  }
  return 0.0f;
}

// Where the code of (lane, k) of one block lies.
void put_code(uint8_t* block, int bits, int lane, int k, int code) {
  if (bits == 8) {
    block[k / 4 * 128 + lane * 4 + k % 4] = static_cast<uint8_t>(code + 128);
    return;
  }
  uint8_t& byte = block[k / 8 * 128 + lane * 4 + k % 4];
  const uint8_t nibble = static_cast<uint8_t>(code + 8);
  byte = k % 8 < 4 ? (byte & 0xf0) | nibble : (byte & 0x0f) | nibble << 4;
}

int get_code(const uint8_t* block, int bits, int lane, int k) {
  if (bits == 8) return block[k / 4 * 128 + lane * 4 + k % 4] - 128;
  const uint8_t byte = block[k / 8 * 128 + lane * 4 + k % 4];
  return (k % 8 < 4 ? byte & 15 : byte >> 4) - 8;
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

int64_t pack_matrix(ThreadPool& pool, const Kernels& kernels, const WeightRows& source, const int32_t* order,
                    const PackedMatrix& m, uint8_t* to) {
  FirstRow bad;
  pool.run(m.panels(), [&](int panel, int) {
    for (int lane = 0; lane < kPanel; lane++) {
      const int output = panel * kPanel + lane;
      const int64_t row = output < m.outputs ? order[output] : -1;
      for (int g = 0; g < m.groups(); g++) {
        float values[kMaxGroup] = {};
        int8_t codes[kMaxGroup];
        bool finite = true;
        const int end = row < 0 ? 0 : std::min(m.group, source.columns - g * m.group);
        for (int k = 0; k < end; k++) {
          values[k] = weight_at(source, row * source.stride + g * m.group + k);
          finite = finite && std::isfinite(values[k]);
        }
        const uint16_t scale = kernels.pack_group(values, m.group, m.bits, codes);
        if (!finite || !is_finite_half(scale)) bad.see(row);
        uint8_t* block = to + panel * m.panel_bytes() + g * m.block_bytes();
        for (int k = 0; k < m.group; k++) put_code(block, m.bits, lane, k, codes[k]);
        std::memcpy(block + 4 * m.bits * m.group + 2 * lane, &scale, sizeof scale);
      }
    }
  });
  return bad.get();
}

int64_t pack_codes(ThreadPool& pool, const CodeRows& source, const int32_t* order, const PackedMatrix& m, uint8_t* to) {
  FirstRow bad;
  const int lowest = m.bits == 4 ? -8 : -127, highest = m.bits == 4 ? 7 : 127, source_groups = source.columns / m.group;
  pool.run(m.panels(), [&](int panel, int) {
    for (int lane = 0; lane < kPanel; lane++) {
      const int output = panel * kPanel + lane;
      const int64_t row = output < m.outputs ? order[output] : -1;
      for (int g = 0; g < m.groups(); g++) {
        uint8_t* block = to + panel * m.panel_bytes() + g * m.block_bytes();
        const bool given = row >= 0 && g < source_groups;
        const int8_t* codes = given ? source.codes + row * source.columns + g * m.group : nullptr;
        const uint16_t scale = given ? source.scales[row * source_groups + g] : uint16_t{0};
        if (!is_finite_half(scale)) bad.see(row);
        for (int k = 0; k < m.group; k++) {
          const int code = given ? codes[k] : 0;
          if (code < lowest || code > highest) bad.see(row);
          put_code(block, m.bits, lane, k, std::clamp(code, lowest, highest));
        }
        std::memcpy(block + 4 * m.bits * m.group + 2 * lane, &scale, sizeof scale);
      }
    }
  });
  return bad.get();
}

PackingError packing_error(ThreadPool& pool, const WeightRows& source, const int32_t* order, const PackedMatrix& m) {
  std::vector<PackingError> panels(static_cast<size_t>(m.panels()));
  pool.run(m.panels(), [&](int panel, int) {
    PackingError sum{};
    for (int lane = 0; lane < kPanel && panel * kPanel + lane < m.outputs; lane++) {
      const int64_t row = order[panel * kPanel + lane];
      for (int k = 0; row >= 0 && k < source.columns; k++) {
        const uint8_t* block = m.data + panel * m.panel_bytes() + k / m.group * m.block_bytes();
        uint16_t scale;
        std::memcpy(&scale, block + 4 * m.bits * m.group + 2 * lane, sizeof scale);
        const double value = weight_at(source, row * source.stride + k);
        const double error = half_to_float(scale) * static_cast<float>(get_code(block, m.bits, lane, k % m.group)) - value;
        sum.squared_error += error * error;
        sum.squared += value * value;
      }
    }
    panels[static_cast<size_t>(panel)] = sum;
  });
  PackingError all{};
  for (const PackingError& panel : panels) {
    all.squared_error += panel.squared_error;
    all.squared += panel.squared;
  }
  return all;
}

void unpack_matrix(const PackedMatrix& m, float* out) {
  for (int output = 0; output < m.outputs; output++)
    for (int g = 0; g < m.groups(); g++) {
      const int lane = output % kPanel;
      const uint8_t* block = m.data + output / kPanel * m.panel_bytes() + g * m.block_bytes();
      uint16_t scale;
      std::memcpy(&scale, block + 4 * m.bits * m.group + 2 * lane, sizeof scale);
      for (int k = 0; k < m.group; k++)
        out[static_cast<int64_t>(output) * m.inputs + g * m.group + k] =
            half_to_float(scale) * static_cast<float>(get_code(block, m.bits, lane, k));
    }
}

}  // namespace estream
