// The reader lanes.
#include "core/reader.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "core/arena.h"
#include "tests/harness.h"
#include "tests/test_file.h"

namespace estream::tests {

namespace {

ReadOutcome settled(Reader& reader, uint64_t ticket) {
  for (int i = 0; i < 600; i++)
    if (const ReadOutcome outcome = reader.wait(ticket, 0.1); outcome.state != ReadState::pending) return outcome;
  throw std::runtime_error("a page was not published within a minute");
}

// Pages of any length with gaps between them.
std::vector<PagePart> random_pages(Random& random, uint64_t offset, uint64_t length) {
  std::vector<PagePart> pages;
  for (uint64_t begin = 0; begin < length; begin += pages.back().length + random.below(9000)) {
    const uint64_t bytes = std::min<uint64_t>(length - begin, 1 + random.below(300000));
    pages.push_back({begin, bytes, checksum(file_bytes(offset + begin, bytes).data(), bytes), true});
  }
  return pages;
}

void check_runs(Reader& reader, Arena& arena, Random& random) {
  std::vector<std::function<bool()>> checks;
  uint8_t* memory = arena.base();
  for (const uint64_t blocks : {530, 1, 67}) {
    const uint64_t offset = random.below(1000) * kBlock;
    const std::vector<PagePart> pages = random_pages(random, offset, blocks * kBlock);
    uint64_t ticket = reader.submit(0, offset, memory, blocks * kBlock, pages);
    for (const PagePart& p : pages)
      checks.push_back([=, &reader, t = ticket++] {
        return settled(reader, t).state == ReadState::ready && holds_file(memory + p.begin, offset + p.begin, p.length);
      });
    memory += blocks * kBlock;
  }
  CHECK(std::all_of(checks.begin(), checks.end(), [](const auto& check) { return check(); }));
}

std::atomic<int> busy_lanes{0};

// Slow enough that the queue stays long.
uint64_t slow_zero(const void*, size_t) {
  busy_lanes++;
  sleep_ms(2);
  busy_lanes--;
  return 0;
}

constexpr int kManyBlocks = 1000;

uint64_t submit_many(Reader& reader, Arena& arena) {
  std::vector<PagePart> pages;
  for (uint64_t i = 0; i < kManyBlocks; i++) pages.push_back({i * kBlock, kBlock, 0, true});
  const uint64_t first = reader.submit(0, 0, arena.base(), kManyBlocks * kBlock, pages);
  CHECK(settled(reader, first).state == ReadState::ready);
  return first;
}

// Whether no lane works, nothing writes to the memory any more, and its end was never read.
bool is_still(const Arena& arena) {
  if (busy_lanes > 0) return false;
  const std::vector<uint8_t> before(arena.base(), arena.base() + arena.bytes());
  sleep_ms(20);
  return std::memcmp(before.data(), arena.base(), before.size()) == 0 && before.end()[-4] == 0;
}

// Zero where the system does not say.
int64_t live_threads() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  return error ? 0 : std::distance(begin(tasks), end(tasks));
}

}  // namespace

void reader_reads_runs_direct_and_buffered() {
  const TestFile file;
  Random random{1};
  Arena arena(600 * kBlock);
  for (const size_t request : {kBlock, 3 * kBlock, 512 * kBlock})
    for (const int lanes : {1, 2, 8})
      for (const bool direct : {false, true}) {
        where = std::to_string(lanes) + " lanes, requests of " + std::to_string(request);
        std::memset(arena.base(), 0, arena.bytes());
        Reader reader(file.paths, lanes, request, direct, checksum);
        check_runs(reader, arena, random);
      }
}

// Parts in any order and of any length share one ticket, while runs are read too. A part after the end of the file fails all.
void reader_gathers_scattered_parts() {
  const TestFile file;
  Random random{2};
  Arena arena(256 * kBlock);
  for (const bool direct : {false, true}) {
    Reader reader(file.paths, 3, 2 * kBlock, direct, checksum);
    for (int round = 0; round < 20; round++) {
      std::vector<Scattered> parts;
      for (uint64_t at = 0; at + 4 * kBlock <= 128 * kBlock; at += 4 * kBlock)
        parts.push_back({random.below(50) * kBlock, arena.base() + at, (1 + random.below(4)) * kBlock});
      const uint64_t gathered = reader.gather(0, parts);
      const uint64_t page = reader.submit(0, 0, arena.base() + 128 * kBlock, kBlock, {{0, kBlock, 0, false}});
      CHECK(page == gathered + 1 && settled(reader, page).state == ReadState::ready);
      CHECK(settled(reader, gathered).state == ReadState::ready);
      for (const Scattered& part : parts)
        CHECK(std::memcmp(part.address, file_bytes(part.offset, part.length).data(), part.length) == 0);
      parts[round].offset = uint64_t{1} << 40;
      const ReadOutcome outcome = settled(reader, reader.gather(0, parts));
      CHECK(outcome.state == ReadState::failed_short && outcome.file_offset == parts[round].offset);
    }
  }
}

void reader_reports_failed_pages() {
  for (const uint64_t size : {uint64_t{10000}, 3 * kBlock})
    for (const bool direct : {false, true}) {
      const TestFile file(size);
      Arena arena(8 * kBlock);
      Reader reader(file.paths, 2, 2 * kBlock, direct, checksum);
      const uint64_t right = checksum(file_bytes(0, kBlock).data(), kBlock);
      const std::vector<PagePart> pages = {
          {0, kBlock, right, true}, {5000, 3000, 1, true}, {9000, 5000, 1, true}, {20480, 1, 1, true}};
      const uint64_t first = reader.submit(0, 0, arena.base(), 8 * kBlock, pages);
      const auto is = [&](int i, ReadState state, uint64_t offset) {
        return settled(reader, first + i).state == state && settled(reader, first + i).file_offset == offset;
      };
      CHECK(is(0, ReadState::ready, 0) && is(1, ReadState::failed_checksum, 5000));
      CHECK(is(2, ReadState::failed_short, size) && is(3, ReadState::failed_short, 4 * kBlock));
    }
}

void reader_reports_what_cannot_be_read() {
  TestFile file;
  Arena arena(kBlock);
  file.paths.push_back(file.paths[0] + ".missing");
  bool thrown = false;
  try {
    Reader(file.paths, 2, kBlock, true, checksum);
  } catch (const std::system_error& error) {
    thrown = error.code() == std::errc::no_such_file_or_directory;
  }
  CHECK(thrown);
  for (const bool direct : {false, true}) {
    Reader reader({file.paths[0]}, 1, kBlock, direct, checksum);
    const uint64_t beyond = uint64_t{1} << 63;  // no system has such an offset
    const ReadOutcome outcome = settled(reader, reader.submit(0, beyond, arena.base(), kBlock, {{0, kBlock, 0, false}}));
    CHECK(outcome.state == ReadState::failed_io && outcome.error > 0 && outcome.file_offset == beyond);
    CHECK(!platform::error_text(outcome.error).empty());
  }
}

// Linux opens a directory and refuses to read it, Windows refuses to open it.
void reader_refuses_directories() {
  const std::string folder = utf8(std::filesystem::temp_directory_path());
  Arena arena(kBlock);
  bool refused = false;
  try {
    Reader reader({folder}, 1, kBlock, true, checksum);
    const ReadOutcome outcome = settled(reader, reader.submit(0, 0, arena.base(), kBlock, {{0, kBlock, 0, false}}));
    refused = outcome.state == ReadState::failed_io && outcome.error == EISDIR;
  } catch (const std::system_error& error) {
    refused = error.code() == std::errc::permission_denied;
  }
  CHECK(refused);
}

void reader_cancels() {
  const TestFile file;
  Arena arena(kManyBlocks * kBlock);
  Reader reader(file.paths, 3, kBlock, true, slow_zero);
  const uint64_t first = submit_many(reader, arena);
  reader.cancel();
  CHECK(is_still(arena));
  for (int i = 0; i < kManyBlocks; i++) {
    const uint8_t* page = arena.base() + i * kBlock;
    const ReadState state = reader.wait(first + i, 0.0).state;
    const bool untouched = std::all_of(page, page + kBlock, [](uint8_t b) { return b == 0; });
    CHECK(state == ReadState::cancelled ? untouched : state == ReadState::ready && holds_file(page, i * kBlock, kBlock));
  }
  CHECK(reader.wait(first + kManyBlocks - 1, 0.0).state == ReadState::cancelled);
  CHECK(settled(reader, reader.submit(0, 0, arena.base(), kBlock, {{0, kBlock, 0, true}})).state == ReadState::ready);
}

// Every second page is withdrawn, of runs whose requests hold one page, two pages, and a third of one.
void reader_withdraws() {
  const TestFile file;
  constexpr uint64_t kPages = 120;
  for (const uint64_t request : {3 * kBlock, 6 * kBlock, kBlock}) {
    Arena arena(3 * kPages * kBlock);
    Reader reader(file.paths, 2, request, true, slow_zero);
    std::vector<PagePart> pages;
    for (uint64_t i = 0; i < kPages; i++) pages.push_back({3 * i * kBlock, 3 * kBlock, 0, true});
    const uint64_t first = reader.submit(0, 0, arena.base(), arena.bytes(), pages);
    std::vector<uint64_t> odd;
    for (uint64_t i = 1; i < kPages; i += 2) odd.push_back(first + i);
    const uint64_t dropped = reader.withdraw(odd);
    CHECK((dropped > 0) == (request < 6 * kBlock));
    uint64_t cancelled = 0;
    for (uint64_t i = 0; i < kPages; i++) {
      const ReadState state = settled(reader, first + i).state;
      const uint8_t* page = arena.base() + 3 * i * kBlock;
      if (state == ReadState::ready)
        CHECK(holds_file(page, 3 * i * kBlock, 3 * kBlock));
      else
        cancelled += state == ReadState::cancelled;
      CHECK(state == ReadState::ready || i % 2 == 1);
    }
    CHECK(cancelled * 3 * kBlock >= dropped);
    CHECK(reader.stats().bytes + dropped == arena.bytes());
    CHECK(reader.withdraw(odd) == 0 && reader.withdraw({first + 1000}) == 0);
  }
}

void reader_leaves_no_thread() {
  const TestFile file;
  Arena arena(kManyBlocks * kBlock);
  std::thread([] {}).join();  // a sanitizer may start a thread of its own with the first one
  const int64_t before = live_threads();
  {
    Reader reader(file.paths, 8, kBlock, false, slow_zero);
    submit_many(reader, arena);
  }
  CHECK(is_still(arena));
  // The system may list a thread for a moment after it was joined.
  for (int i = 0; i < 1000 && live_threads() > before; i++) sleep_ms(1);
  CHECK(live_threads() <= before);
}

// Once a page is published as failed, its memory may be used for another read. So no lane may write to it then.
void reader_publishes_failures_last() {
  const TestFile file(0);
  Arena arena(30000 * kBlock);  // never touched: the file is empty
  Reader reader(file.paths, 2, kBlock, false, checksum);
  const uint64_t ticket = reader.submit(0, 0, arena.base(), arena.bytes(), {{0, arena.bytes(), 0, true}});
  CHECK(settled(reader, ticket).state == ReadState::failed_short && reader.stats().requests == 30000);
  // Submits more pages than the reader keeps, while requests of the first are still queued.
  const uint64_t first = reader.submit(0, 0, arena.base(), arena.bytes(), {{0, arena.bytes(), 0, true}});
  std::vector<PagePart> tiny;
  for (uint64_t i = 0; i < 20000; i++) tiny.push_back({i, 1, 0, false});
  for (int i = 0; i < 2; i++) reader.submit(0, 0, arena.base(), 20000, tiny);
  CHECK(settled(reader, first + 2 * 20000).state == ReadState::failed_short);
}

void reader_wakes_who_waits_for_a_cancelled_page() {
  const TestFile file;
  Arena arena(kManyBlocks * kBlock);
  Reader reader(file.paths, 1, kBlock, false, slow_zero);
  const uint64_t first = submit_many(reader, arena);
  ReadState state = ReadState::pending;
  const auto begin = std::chrono::steady_clock::now();
  std::thread waiter([&] { state = reader.wait(first + kManyBlocks - 1, 20.0).state; });
  sleep_ms(50);
  reader.cancel();
  waiter.join();
  CHECK(state == ReadState::cancelled && std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

}  // namespace estream::tests
