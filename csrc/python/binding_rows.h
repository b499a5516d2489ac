// Rows of activations as Python's arrays give them, and the checks of them that calls of the CPU device share.
#pragma once
#include <algorithm>

#include "core/cpu_device.h"
#include "python/binding.h"

namespace estream::binding {

inline Rows rows(const Floats& a) { return {a.data(), static_cast<int>(a.shape(0)), static_cast<int64_t>(a.shape(1))}; }

// Quantised activations of `rows` tokens in three arrays.
struct Quantized {
  Array<int8_t, 2> codes;
  Floats scales;
  Array<int32_t, 2> sums;

  Quantized(Array<int8_t, 2> codes, Floats scales, Array<int32_t, 2> sums) : codes(codes), scales(scales), sums(sums) {
    require(scales.shape(0) == codes.shape(0) && sums.shape(0) == codes.shape(0), "codes, scales and sums differ in rows");
    require(scales.shape(1) == sums.shape(1) && scales.shape(1) > 0 && codes.shape(1) % scales.shape(1) == 0,
            "codes must be a whole number of groups");
  }
  int group() const { return static_cast<int>(codes.shape(1) / scales.shape(1)); }
  // Where rows of at least `columns` go.
  QuantizedOutput output(const Rows& x, int columns, const char* message) const {
    const int padded = static_cast<int>(codes.shape(1));
    require(static_cast<int>(codes.shape(0)) == x.rows && columns <= padded && columns <= x.stride, message);
    require(group() % 16 == 0, "groups of what is quantised must be a multiple of 16");
    return {codes.data(), scales.data(), sums.data(), padded, group()};
  }
  Activations activations() const {
    return {{codes.data(), scales.data(), sums.data(), static_cast<int>(codes.shape(1)), static_cast<int>(scales.shape(1))},
            nullptr,
            0};
  }
};

inline Activations activations(const Matrix& m, const Quantized& x) {
  require(static_cast<int>(x.codes.shape(1)) == m.inputs && x.group() == m.group, "activations do not fit the matrix");
  return x.activations();
}

inline Activations activations(const Matrix& m, const Floats& x) {
  require(static_cast<int>(x.shape(1)) == m.inputs, "activations do not fit the matrix");
  return {{}, x.data(), static_cast<int64_t>(x.shape(1))};
}

inline const float* floats_at(uintptr_t address) { return reinterpret_cast<const float*>(address); }

inline void check_rows(const int32_t* rows, size_t count, int64_t limit, const char* message) {
  // Without a branch for each: there is a call for every expert.
  int32_t lowest = 0, highest = 0;
  for (size_t i = 0; i < count; i++) {
    lowest = std::min(lowest, rows[i]);
    highest = std::max(highest, rows[i]);
  }
  require(lowest >= 0 && (count == 0 || highest < limit), message);
}

inline void check_rows(const Array<int32_t, 1>& a, size_t count, int64_t limit, const char* message) {
  require(a.shape(0) == count, message);
  check_rows(a.data(), count, limit, message);
}

}  // namespace estream::binding
