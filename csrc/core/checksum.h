// XXH3-64 of bytes that come in pieces.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace estream {

// The same value as Kernels::checksum of all pieces in a row.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(const void* data, size_t bytes);
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace estream
