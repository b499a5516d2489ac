// Tests of the plain C++ library without Python, so that sanitizers, cross builds and emulators can run them:
//   estream_native_test [name]
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <stdexcept>
#include <system_error>

#include "arena.h"
#include "cpu_device.h"
#include "pack.h"
#include "reader.h"
#include "routing.h"

using namespace estream;

namespace {

std::string where;  // what a failing test was busy with

void require(bool condition, const char* text, int line) {
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

bool close(const std::vector<double>& expected, const std::vector<float>& got) {
  double largest = 0.0;
  for (const double x : expected) largest = std::max(largest, std::fabs(x));
  for (size_t i = 0; i < expected.size(); i++)
    if (!(std::fabs(expected[i] - got[i]) <= 1e-4 * largest)) return false;
  return expected.size() == got.size();
}

template <typename Body>
void for_each_variant(Body&& body) {
  for (const char* const* name = available_kernels(); *name; name++) body(*find_kernels(where = *name, *name));
}
