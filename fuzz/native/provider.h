// Reads choices from the bytes of an input; zeros follow the last.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace estream::fuzz {

class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  uint8_t byte() {
    if (left_ == 0) return 0;
    left_--;
    return *data_++;
  }
  template <typename T>
  T number() {
    uint8_t bytes[sizeof(T)];
    for (uint8_t& b : bytes) b = byte();
    T value;
    std::memcpy(&value, bytes, sizeof(T));
    return value;
  }
  // In first..last.
  int within(int first, int last) { return first + number<uint16_t>() % (last - first + 1); }
  bool flag() { return byte() & 1; }
  template <typename T>
  T of(std::initializer_list<T> values) {
    return values.begin()[byte() % values.size()];
  }
  // Small values; the first may be anything at all.
  std::vector<float> floats(size_t count) {
    std::vector<float> values(count);
    uint32_t state = number<uint32_t>() | 1;
    for (float& value : values) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
    }
    if (count && byte() % 8 == 0) values[byte() % count] = number<float>();
    return values;
  }
  std::vector<uint8_t> bytes(size_t count) {
    std::vector<uint8_t> values(count);
    uint32_t state = number<uint32_t>() | 1;
    for (uint8_t& value : values) value = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
    return values;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace estream::fuzz
