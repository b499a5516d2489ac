// What the native tests share.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/kernels.h"

namespace estream::tests {

inline std::string where;  // what the test is doing, for the message of a failure

inline void require(bool condition, const char* text, const char* file, int line) {
  if (condition) return;
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + text +
                           (where.empty() ? "" : " (" + where + ")"));
}
#define CHECK(condition) require(condition, #condition, __FILE__, __LINE__)

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

// Whether all differences are at most `tolerance` times the largest expected magnitude.
inline bool close(const std::vector<double>& expected, const std::vector<float>& got, double tolerance = 2e-5) {
  double largest = 0.0;
  for (const double x : expected) largest = std::max(largest, std::fabs(x));
  for (size_t i = 0; i < expected.size(); i++)
    if (!(std::fabs(expected[i] - got[i]) <= tolerance * largest)) return false;
  return expected.size() == got.size();
}

inline void choose_kernels(const std::string& name) {
#if defined(_WIN32)
  _putenv_s("ESTREAM_KERNELS", name.c_str());
#else
  setenv("ESTREAM_KERNELS", name.c_str(), 1);
#endif
}

// Calls body for each variant that can run here, which select_kernels then chooses.
inline void for_each_variant(const std::function<void(const Kernels&)>& body) {
  const char* set = std::getenv("ESTREAM_KERNELS");
  const std::string before = set ? set : "";
  for (const char* const* name = available_kernels(); *name; name++) {
    choose_kernels(where = *name);
    body(select_kernels());
  }
  choose_kernels(before);
}

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

constexpr uint64_t kBlock = 4096;

// The content of the test file: every block repeats its own number.
inline std::vector<uint8_t> file_bytes(uint64_t begin, uint64_t length) {
  std::vector<uint8_t> bytes(length);
  for (uint64_t i = begin; i < begin + length; i++) bytes[i - begin] = static_cast<uint8_t>((i / kBlock + 1) >> i % 4 * 8);
  return bytes;
}

}  // namespace estream::tests
