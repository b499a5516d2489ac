// What the native tests share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace estream::tests {

inline std::string where;  // what a failing test was busy with

inline void require(bool condition, const char* text, int line) {
  if (!condition) throw std::runtime_error("line " + std::to_string(line) + ": " + text + " (" + where + ")");
}
#define CHECK(condition) require(condition, #condition, __LINE__)

// Splitmix64: G. Steele, D. Lea, C. Flood, Fast Splittable Pseudorandom Number Generators (OOPSLA 2014).
struct Random {
  uint64_t state;
  uint32_t bits() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return static_cast<uint32_t>(z >> 32);
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint32_t>(n)); }
  std::vector<float> values(int n) {
    std::vector<float> v(n);
    for (float& x : v) x = static_cast<float>(bits()) * 0x1p-31f - 1.0f;
    return v;
  }
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

inline bool close(const std::vector<double>& expected, const std::vector<float>& got) {
  double largest = 0.0;
  for (const double x : expected) largest = std::max(largest, std::fabs(x));
  for (size_t i = 0; i < expected.size(); i++)
    if (!(std::fabs(expected[i] - got[i]) <= 2e-5 * largest)) return false;
  return expected.size() == got.size();
}

inline void choose_kernels(const std::string& name) {
#if defined(_WIN32)
  _putenv_s("ESTREAM_KERNELS", name.c_str());
#else
  setenv("ESTREAM_KERNELS", name.c_str(), 1);
#endif
}

// Makes each variant in turn the one that select_kernels chooses.
inline void for_each_variant(const std::function<void(const Kernels&)>& body) {
  const char* set = std::getenv("ESTREAM_KERNELS");
  const std::string before = set ? set : "";
  for (const char* const* name = available_kernels(); *name; name++) {
    choose_kernels(where = *name);
    body(select_kernels());
  }
  choose_kernels(before);
}

constexpr uint64_t kBlock = 4096;

// What the test file holds: every block repeats its own number.
inline std::vector<uint8_t> file_bytes(uint64_t begin, uint64_t length) {
  std::vector<uint8_t> bytes(length);
  for (uint64_t i = begin; i < begin + length; i++) bytes[i - begin] = static_cast<uint8_t>((i / kBlock + 1) >> i % 4 * 8);
  return bytes;
}

}  // namespace estream::tests
