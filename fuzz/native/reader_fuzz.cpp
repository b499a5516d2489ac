// Runs of reads at any offset and length, with any pages and tickets, into an arena whose bytes behind the asked ones must
// stay.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

#include "core/arena.h"
#include "core/reader.h"
#include "kernels/kernels.h"
#include "native/provider.h"

namespace estream::fuzz {

namespace {

constexpr uint64_t kBlock = 4096, kFileBytes = 9 * kBlock + 1234, kRoom = 16 * kBlock;
constexpr uint8_t kUntouched = 0xa5;

uint8_t file_byte(uint64_t at) { return static_cast<uint8_t>(at * 7 + at / kBlock); }

const std::string& file_path() {
  static const std::string path = [] {
    const char* folder = std::getenv("TMPDIR");
    std::string made = std::string(folder ? folder : "/tmp") + "/estream_reader_fuzz_" + std::to_string(getpid());
    std::string content(kFileBytes, '\0');
    for (uint64_t i = 0; i < kFileBytes; i++) content[i] = static_cast<char>(file_byte(i));
    std::ofstream(made, std::ios::binary) << content;
    std::atexit([] { std::remove(file_path().c_str()); });
    return made;
  }();
  return path;
}

void check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::abort();
}

struct Run {
  uint64_t offset, length, first;
  std::vector<PagePart> pages;
};

Run choose(Choices& c, bool direct) {
  const uint64_t step = direct ? kBlock : 1;
  Run run{};
  run.length = (1 + c.number<uint32_t>() % (kRoom / step)) * step;
  run.offset = c.byte() % 4 ? c.number<uint16_t>() * (direct ? kBlock / 64 : 1) : c.number<uint64_t>();
  run.offset = run.offset / step * step;
  uint64_t begin = 0;
  for (int count = c.byte() % 6; count > 0 && begin < run.length; count--) {
    begin += c.byte() % 2 ? 0 : c.number<uint16_t>() % (run.length - begin);
    const uint64_t bytes = 1 + c.number<uint32_t>() % (run.length - begin);
    run.pages.push_back({begin, bytes, c.byte(), c.byte() % 4 == 0});
    begin += bytes;
  }
  return run;
}

void check_page(const ReadOutcome& outcome, const Run& run, const PagePart& page, uint64_t request_bytes, const uint8_t* base) {
  if (outcome.state == ReadState::ready) {
    for (uint64_t i = 0; i < page.length; i++)
      check(base[page.begin + i] == file_byte(run.offset + page.begin + i), "a page holds other bytes");
    check(!page.verify || find_kernels("portable")->checksum(base + page.begin, page.length) == page.checksum,
          "a wrong checksum was taken");
  } else if (outcome.state == ReadState::failed_short) {
    // A request that ends beyond the file fails all pages that it touches.
    const uint64_t end = (page.begin + page.length + request_bytes - 1) / request_bytes * request_bytes;
    check(run.offset > kFileBytes || run.offset + std::min(end, run.length) > kFileBytes,
          "requests inside the file were short");
  }
}

void one(Choices& c) {
  const bool direct = c.flag();
  const uint64_t request_bytes = kBlock * static_cast<uint64_t>(c.within(1, 4));
  Reader reader({file_path()}, c.within(1, 4), request_bytes, direct, find_kernels("portable")->checksum);
  Arena arena(kRoom + kBlock);
  while (!c.empty()) {
    std::fill(arena.base(), arena.base() + arena.bytes(), kUntouched);
    Run run = choose(c, reader.direct(0));
    run.first = reader.submit(0, run.offset, arena.base(), run.length, run.pages);
    if (c.byte() % 8 == 0) reader.cancel();
    for (size_t i = 0; i < run.pages.size(); i++) {
      ReadOutcome outcome = reader.wait(run.first + i, 10.0);
      check(outcome.state != ReadState::pending, "a page is never published");
      check(reader.is_published(run.first + i), "a published page is not");
      check_page(outcome, run, run.pages[i], request_bytes, arena.base());
    }
    reader.cancel();
    for (uint64_t i = run.length; i < arena.bytes(); i++) check(arena.base()[i] == kUntouched, "bytes behind the run changed");
    try {
      reader.wait(c.number<uint64_t>(), 0.0);
    } catch (const std::out_of_range&) {
    }
  }
}

}  // namespace

}  // namespace estream::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  estream::fuzz::Choices choices(data, size);
  estream::fuzz::one(choices);
  return 0;
}
