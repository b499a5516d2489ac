// The fixed memory that holds pages and activations. It is reserved once and its addresses never move. Its owner backs parts
// with memory before they are used.
#pragma once
#include <cstddef>
#include <cstdint>

#include "platform/platform.h"

namespace estream {

class Arena {
 public:
  explicit Arena(size_t bytes) : bytes_(bytes), base_(static_cast<uint8_t*>(platform::reserve(bytes))) {}
  ~Arena() { platform::release(base_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint8_t* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  // Keeps the arena from being swapped out. False where the limit on locked memory (ulimit -l) forbids it.
  bool lock() { return platform::lock(base_, bytes_); }
  // Backs a part with memory. Throws std::bad_alloc where the system has none left.
  void populate(size_t offset, size_t bytes) { platform::populate(base_ + offset, bytes); }

 private:
  size_t bytes_;
  uint8_t* base_;
};

}  // namespace estream
