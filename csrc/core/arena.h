// The fixed memory that pages and activations lie in: reserved once, its addresses never move; backed with memory in
// parts, before they are used.
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
  // False where the limit on locked memory (ulimit -l) does not allow it.
  bool lock() { return platform::lock(base_, bytes_); }
  // Throws std::bad_alloc where the system has no memory left.
  void populate(size_t offset, size_t bytes) { platform::populate(base_ + offset, bytes); }

 private:
  size_t bytes_;
  uint8_t* base_;
};

}  // namespace estream
