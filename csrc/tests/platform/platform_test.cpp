// What the operating system is asked for: memory, reads at an offset, facts about the process.
#include "platform/platform.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/arena.h"
#include "tests/harness.h"
#include "tests/test_file.h"

namespace estream::tests {

void platform_tells_memory_and_processors() {
  const platform::ProcessMemory before = platform::process_memory();
  constexpr size_t kBytes = 64 << 20;
  Arena arena(kBytes);
  std::memset(arena.base(), 1, kBytes);  // an emulator may take a request to populate for advice
  const platform::ProcessMemory after = platform::process_memory();
  CHECK(before.resident > 0 && after.peak >= after.resident && after.resident >= before.resident + kBytes / 2);
  CHECK(platform::available_memory() > 0 && platform::usable_processors() > 0);
  CHECK(platform::process_lives(getpid()) && !platform::process_lives(0x3ffffffc));
}

// What a package's pages are padded to. Windows reads past its cache wherever these tests run, and refuses all else.
void direct_reads_take_multiples_of_64_kib() {
  constexpr uint64_t kPad = 64 << 10, kSize = 9 * kPad + 1000;
  const TestFile file(kSize);
  Arena arena(16 * kPad);
  uint8_t* memory = arena.base();
  const platform::File opened = platform::open_for_reading(file.paths[0], true);
  for (uint64_t offset = 0; offset < 10 * kPad; offset += kPad)
    for (uint64_t length = kPad; length <= 4 * kPad; length += kPad) {
      const uint64_t there = std::min(length, kSize - offset);
      CHECK(platform::read_at(opened, memory + kPad, length, offset) == static_cast<int64_t>(there));
      CHECK(holds_file(memory + kPad, offset, there));
    }
  CHECK(platform::read_at(opened, memory, kPad, 10 * kPad) == 0);
#if defined(_WIN32)
  CHECK(opened.direct);
  CHECK(platform::read_at(opened, memory, kPad, 512) < 0 && platform::read_at(opened, memory + 512, kPad, 0) < 0);
  CHECK(platform::read_at(opened, memory, kPad + 512, 0) < 0);
#endif
  platform::close(opened);
}

}  // namespace estream::tests
