// The fixed memory that pages are read into: reserved and populated once, its addresses never move.
#pragma once
#include <cstddef>
#include <cstdint>

#include "platform.h"

namespace estream {

class Arena {
 public:
  explicit Arena(size_t bytes) : bytes_(bytes), base_(static_cast<uint8_t*>(platform::reserve(bytes))) {
    try {
      platform::populate(base_, bytes_);
    } catch (...) {
      platform::release(base_, bytes_);
      throw;
    }
  }
  ~Arena() { platform::release(base_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint8_t* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  uint8_t* base_;
};

}  // namespace estream
