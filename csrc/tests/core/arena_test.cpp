// The arena.
#include "core/arena.h"

#include <algorithm>
#include <cstring>

#include "tests/harness.h"

namespace estream::tests {

void arena_is_aligned_zeroed_writable() {
  for (const size_t bytes : {size_t{1}, (size_t{2} << 20) + 1, size_t{5} << 20}) {
    Arena arena(bytes);
    arena.populate(0, bytes / 2);
    CHECK(arena.bytes() == bytes && reinterpret_cast<uintptr_t>(arena.base()) % (2u << 20) == 0);
    CHECK(std::all_of(arena.base(), arena.base() + bytes, [](uint8_t b) { return b == 0; }));
    std::memset(arena.base(), 0xa5, bytes);
    CHECK(arena.base()[0] == 0xa5 && arena.base()[bytes - 1] == 0xa5);
    // Whether the limits allow it or not, what is there stays.
    arena.lock();
    CHECK(arena.base()[0] == 0xa5 && arena.base()[bytes - 1] == 0xa5);
  }
}

}  // namespace estream::tests
