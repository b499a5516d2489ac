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
    if (!(std::fabs(expected[i] - got[i]) <= 2e-5 * largest)) return false;
  return expected.size() == got.size();
}

// Makes each variant in turn the one that select_kernels chooses.
void for_each_variant(const std::function<void(const Kernels&)>& body) {
  const char* set = std::getenv("ESTREAM_KERNELS");
  const std::string before = set ? set : "";
  for (const char* const* name = available_kernels(); *name; name++) {
    setenv("ESTREAM_KERNELS", (where = *name).c_str(), 1);
    body(select_kernels());
  }
  setenv("ESTREAM_KERNELS", before.c_str(), 1);
}

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

void pool_runs_every_index_once() {
  for (int threads = 1; threads <= 4; threads++) {
    ThreadPool pool(threads);
    for (int run = 0; run < 400; run++) {
      const int count = run % 50 == 49 ? 1000 : run % 9;
      std::vector<int> results(count), want(count);
      for (int i = 0; i < count; i++) want[i] = i * i + 1;
      // Plain integers: a sanitizer sees whether a run's writes happen before its end.
      pool.run(count, [&](int i, int thread) { results[i] += thread >= 0 && thread < threads ? i * i + 1 : -1; });
      CHECK(results == want);
    }
  }
}

// Every task waits until all threads are inside one: the run only ends in time if each of them woke up.
void pool_wakes_sleeping_workers() {
  for (int threads = 2; threads <= 4; threads++) {
    ThreadPool pool(threads);
    for (int run = 0; run < 5; run++) {
      sleep_ms(2);
      std::atomic<int> inside{0};
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      pool.run(threads, [&](int, int) {
        for (inside++; inside < threads && std::chrono::steady_clock::now() < deadline;) std::this_thread::yield();
      });
      CHECK(inside == threads && std::chrono::steady_clock::now() < deadline);
    }
  }
}

void arena_is_aligned_zeroed_writable() {
  for (const size_t bytes : {size_t{1}, (size_t{2} << 20) + 1, size_t{5} << 20}) {
    Arena arena(bytes);
    arena.populate(0, bytes / 2);
    CHECK(arena.bytes() == bytes && reinterpret_cast<uintptr_t>(arena.base()) % (2u << 20) == 0);
    CHECK(std::all_of(arena.base(), arena.base() + bytes, [](uint8_t b) { return b == 0; }));
    std::memset(arena.base(), 0xa5, bytes);
    CHECK(arena.base()[0] == 0xa5 && arena.base()[bytes - 1] == 0xa5);
  }
}

constexpr uint64_t kBlock = 4096, kFileBlocks = 1600;

// What the test file holds: every block repeats its own number.
std::vector<uint8_t> file_bytes(uint64_t begin, uint64_t length) {
  std::vector<uint8_t> bytes(length);
  for (uint64_t i = begin; i < begin + length; i++) bytes[i - begin] = static_cast<uint8_t>((i / kBlock + 1) >> i % 4 * 8);
  return bytes;
}

bool holds_file(const uint8_t* memory, uint64_t offset, uint64_t length) {
  return std::memcmp(memory, file_bytes(offset, length).data(), length) == 0;
}

struct TestFile {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / ("estream_test_" + std::to_string(getpid()));
  std::vector<std::string> paths = {path.string()};

  explicit TestFile(uint64_t bytes = kFileBlocks * kBlock) {
    const std::vector<uint8_t> content = file_bytes(0, bytes);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(bytes));
    CHECK(std::filesystem::file_size(path) == bytes);
  }
  ~TestFile() { std::filesystem::remove(path); }
};

uint64_t checksum(const void* data, size_t bytes) { return find_kernels("portable")->checksum(data, bytes); }

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
    thrown = error.code().value() == ENOENT;
  }
  CHECK(thrown);
  file.paths[1] = file.path.parent_path().string();  // a directory can be opened, but not read
  Reader reader(file.paths, 1, kBlock, true, checksum);
  const ReadOutcome outcome = settled(reader, reader.submit(1, 0, arena.base(), kBlock, {{0, kBlock, 0, false}}));
  CHECK(outcome.state == ReadState::failed_io && outcome.error == EISDIR);
}

std::atomic<int> busy_lanes{0};

// So slow that the queue stays long.
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

// Whether no lane is at work and nothing writes to the memory any more, the end of which was never read.
bool is_still(const Arena& arena) {
  if (busy_lanes > 0) return false;
  const std::vector<uint8_t> before(arena.base(), arena.base() + arena.bytes());
  sleep_ms(20);
  return std::memcmp(before.data(), arena.base(), before.size()) == 0 && before.end()[-4] == 0;
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

// Zero where the system does not say.
int64_t live_threads() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  return error ? 0 : std::distance(begin(tasks), end(tasks));
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

// Publishing ends a page's use of its memory: whoever is told that it failed may read something else to that place.
void reader_publishes_failures_last() {
  const TestFile file(0);
  Arena arena(30000 * kBlock);  // never touched: the file is empty
  Reader reader(file.paths, 2, kBlock, false, checksum);
  const uint64_t ticket = reader.submit(0, 0, arena.base(), arena.bytes(), {{0, arena.bytes(), 0, true}});
  CHECK(settled(reader, ticket).state == ReadState::failed_short && reader.stats().requests == 30000);
  // More pages than are kept, while requests of the first are still queued.
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

struct Matrix {
  PackedMatrix packed;
  std::vector<uint8_t> bytes = std::vector<uint8_t>(packed.bytes());
  std::vector<float> weights = std::vector<float>(packed.outputs * packed.inputs);  // [outputs, inputs]
};

// Any codes; scales of either sign between 2^-7 and 2^-6.
Matrix random_matrix(Random& random, int outputs, int inputs, int bits, int group) {
  Matrix m = {{nullptr, outputs, inputs, bits, group}};
  for (uint8_t& byte : m.bytes) byte = static_cast<uint8_t>(random.bits());
  for (size_t behind = m.packed.block_bytes(); behind <= m.bytes.size(); behind += m.packed.block_bytes())
    for (size_t i = behind - 2 * kPanel + 1; i < behind; i += 2) m.bytes[i] = static_cast<uint8_t>((m.bytes[i] & 0x83) | 0x20);
  m.packed.data = m.bytes.data();
  unpack_matrix(m.packed, m.weights.data());
  return m;
}

struct Quantized {
  int rows, columns, group, groups = columns / group;
  std::vector<int8_t> codes = std::vector<int8_t>(rows * columns);
  std::vector<float> scales = std::vector<float>(rows * groups);
  std::vector<int32_t> sums = std::vector<int32_t>(rows * groups);

  QuantizedRows view() const { return {codes.data(), scales.data(), sums.data(), columns, groups}; }
};

Quantized quantize(const Kernels& kernels, const std::vector<float>& x, int rows, int padded, int group) {
  Quantized q{rows, padded, group};
  const int columns = static_cast<int>(x.size()) / rows;
  for (int r = 0; r < rows; r++)
    kernels.quantize_row(&x[r * columns], columns, padded, group, &q.codes[r * padded], &q.scales[r * q.groups],
                         &q.sums[r * q.groups]);
  return q;
}

void check_codes(const Quantized& q, const std::vector<float>& x) {
  const int columns = static_cast<int>(x.size()) / q.rows;
  for (int i = 0; i < q.rows * q.columns; i += q.group) {
    const auto value = [&](int k) {
      return i % q.columns + k < columns ? x[i / q.columns * columns + i % q.columns + k] : 0.0f;
    };
    float peak = 0.0f;
    int sum = 0;
    for (int k = 0; k < q.group; k++) peak = std::max(peak, std::fabs(value(k)));
    const float inverse = peak > 0.0f ? 127.0f / peak : 0.0f;
    for (int k = 0; k < q.group; k++) {
      sum += q.codes[i + k];
      // The inverse of a subnormal peak may be infinite.
      CHECK(std::isinf(inverse) || q.codes[i + k] == std::nearbyint(value(k) * inverse));
    }
    CHECK(q.sums[i / q.group] == sum && q.scales[i / q.group] == peak / 127.0f);
  }
}

void codes_are_exact_in_every_variant() {
  constexpr float kFactors[] = {1.0f, 1e30f, 3e-3f, 0.0f, 1e-36f, 1e-40f};
  Random random{2};
  std::vector<float> x = random.values(6 * 200);
  for (int i = 0; i < 6 * 200; i++) x[i] *= kFactors[i / 200];
  for (const int group : {32, 64, 128}) {
    const Quantized first = quantize(*find_kernels("portable"), x, 6, 256, group);
    check_codes(first, x);
    for_each_variant([&](const Kernels& kernels) {
      const Quantized q = quantize(kernels, x, 6, 256, group);
      CHECK(q.codes == first.codes && same_bits(q.scales, first.scales) && q.sums == first.sums);
    });
  }
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

using Element = std::function<double(int row, int column)>;

// x [rows, inputs] . weights, [rows, outputs].
std::vector<double> products(const Matrix& m, int rows, const Element& x) {
  const int inputs = m.packed.inputs, outputs = m.packed.outputs;
  std::vector<double> y(rows * outputs);
  for (int r = 0; r < rows; r++)
    for (int k = 0; k < inputs; k++) {
      const double value = x(r, k);
      for (int o = 0; o < outputs; o++) y[r * outputs + o] += value * m.weights[o * inputs + k];
    }
  return y;
}

using RunPanel = std::function<void(int panel, const PanelOutput& out)>;

// Writes a product to rows in rising or, with a row list, falling order. What lies between the results must stay.
void check_write(const PackedMatrix& w, Write write, const std::vector<double>& expected, const int32_t* list, int rows,
                 const RunPanel& run) {
  const int width = write == Write::swiglu ? w.outputs / 2 : w.outputs, stride = width + 3;
  std::vector<float> y((rows + 1) * stride, 0.5f), weights(rows, 1.0f);
  std::vector<double> want(y.begin(), y.end());
  std::vector<int32_t> to(rows);
  for (int r = 0; r < rows; r++) {
    to[r] = list ? rows - r : r;
    if (list) weights[r] = 0.25f * static_cast<float>(r + 1);
    const double* p = &expected[(list ? list[r] : r) * w.outputs];
    for (int c = 0; c < width; c++) {
      const double *gate = p + c / 16 * kPanel + c % 16, linear = write == Write::add ? 0.5 + weights[r] * p[c] : p[c];
      want[to[r] * stride + c] = write == Write::swiglu ? silu(gate[0]) * gate[16] : linear;
    }
  }
  const PanelOutput out = {write, y.data(), stride, list ? to.data() : nullptr, list ? weights.data() : nullptr};
  for (int panel = 0; panel < w.panels(); panel++) run(panel, out);
  CHECK(close(want, y));
}

void check_products(Random& random, const Matrix& m, int rows_from, int rows_to) {
  const PackedMatrix& w = m.packed;
  const std::vector<float> x = random.values(rows_to * w.inputs);
  const Quantized q = quantize(*find_kernels("portable"), x, rows_to, w.inputs, w.group);
  const std::vector<double> of_floats = products(m, rows_to, [&](int r, int k) { return x[r * w.inputs + k]; });
  const std::vector<double> of_codes = products(
      m, rows_to, [&](int r, int k) { return double{q.scales[(r * w.inputs + k) / w.group]} * q.codes[r * w.inputs + k]; });
  std::vector<int32_t> list(rows_to);
  for (int r = 0; r < rows_to; r++) list[r] = (5 * r + 3) % rows_to;
  std::vector<float> scratch((w.group + kFloatRows) * kPanel);
  for_each_variant([&](const Kernels& kernels) {
    for (int rows = rows_from; rows <= rows_to; rows++)
      for (const int32_t* from : {static_cast<const int32_t*>(nullptr), static_cast<const int32_t*>(list.data())})
        for (const Write write : {Write::store, Write::add, Write::swiglu}) {
          if (write == Write::swiglu && w.outputs % kPanel != 0) continue;
          check_write(w, write, of_codes, from, rows,
                      [&](int panel, const PanelOutput& out) { kernels.matmul_panel(w, panel, q.view(), from, rows, out); });
          check_write(w, write, of_floats, from, rows, [&](int panel, const PanelOutput& out) {
            kernels.matmul_panel_float(w, panel, x.data(), w.inputs, from, rows, out, scratch.data());
          });
        }
  });
}

void products_match_their_definition() {
  Random random{3};
  for (const int bits : {4, 8})
    for (const int group : {32, 64, 128})
      for (const int outputs : {7, 64, 81})
        check_products(random, random_matrix(random, outputs, 2 * group, bits, group), 1, 13);
  // More float rows than one call has in flight.
  check_products(random, random_matrix(random, 33, 32, 4, 32), kFloatRows + 5, kFloatRows + 5);
}

void check_norm(const Kernels& kernels, Random& random, int columns) {
  const std::vector<float> x = random.values(columns), weight = random.values(columns);
  std::vector<float> y(columns);
  std::vector<double> want(columns);
  double squares = 0.0;
  for (const float v : x) squares += double{v} * v;
  for (int i = 0; i < columns; i++) want[i] = x[i] / std::sqrt(squares / columns + 1e-5) * weight[i];
  kernels.rms_norm(x.data(), weight.data(), 1e-5f, y.data(), columns);
  CHECK(close(want, y));
}

void check_rope(const Kernels& kernels, Random& random, int half) {
  std::vector<float> x = random.values(6 * half);
  const std::vector<float> c = random.values(half), s = random.values(half);
  std::vector<double> want(x.size());
  for (int i = 0; i < 6 * half; i++)
    want[i] = double{x[i]} * c[i % half] + (i / half % 2 ? double{x[i - half]} : -double{x[i + half]}) * s[i % half];
  kernels.rope(x.data(), c.data(), s.data(), 3, 2 * half);
  CHECK(close(want, x));
}

void check_router(const Kernels& kernels, Random& random, int lanes, int rows) {
  constexpr int kHidden = 37, kStride = 40;
  const std::vector<float> weight = random.values(kHidden * lanes), x = random.values(rows * kStride);
  std::vector<float> logits(rows * lanes);
  std::vector<double> want(logits.size());
  for (int i = 0; i < rows * lanes; i++)
    for (int k = 0; k < kHidden; k++) want[i] += double{x[i / lanes * kStride + k]} * weight[k * lanes + i % lanes];
  kernels.router(x.data(), kStride, rows, weight.data(), kHidden, lanes, logits.data());
  CHECK(close(want, logits));
}

void float_kernels_match_their_definition() {
  Random random{4};
  for_each_variant([&](const Kernels& kernels) {
    for (const int columns : {1, 16, 44, 130}) check_norm(kernels, random, columns);
    for (const int half : {1, 16, 22}) check_rope(kernels, random, half);
    for (const int lanes : {16, 32, 80})
      for (int rows = 1; rows <= 9; rows++) check_router(kernels, random, lanes, rows);
  });
}

// Two sequences in one batch. Behind each, up to where a kernel may read, lies what must not matter.
struct AttentionTest {
  static constexpr int kFirst = 75, kTokens = 117, kCapacity = 96 + 64, kHeads = 4, kKvHeads = 2, kDim = 24;
  const int value_dim;
  const AttentionShape shape = {kHeads, kKvHeads, kDim, value_dim, 1.5f};
  Random random{5};
  std::vector<float> q = random.values(kTokens * kHeads * kDim), k = random.values(kTokens * kKvHeads * kDim);
  std::vector<float> v = random.values(kTokens * kKvHeads * value_dim);

  std::vector<float> run(int threads, int at_once) {
    CpuDevice device(threads);
    std::vector<float> keys(kKvHeads * kCapacity * kDim, NAN), values(kKvHeads * kCapacity * ((value_dim + 15) / 16 * 16), NAN);
    std::vector<float> out(kTokens * kHeads * value_dim);
    std::vector<int32_t> positions(kTokens), bases(kTokens), places(kTokens);
    for (int t = 0; t < kTokens; t++) {
      positions[t] = t < kFirst ? t : t - kFirst;
      places[t] = positions[t] + (bases[t] = t < kFirst ? 0 : 96);
    }
    const KeyValues kv = {keys.data(), values.data(), kCapacity};
    device.store_key_values(shape, {k.data(), kTokens, kKvHeads * kDim}, {v.data(), kTokens, kKvHeads * value_dim},
                            places.data(), kv);
    for (int t = 0; t < kTokens; t += at_once) {
      const int rows = std::min(at_once, kTokens - t);
      device.attention(shape, {&q[t * kHeads * kDim], rows, kHeads * kDim}, &positions[t], &bases[t], kv,
                       {&out[t * kHeads * value_dim], rows, kHeads * value_dim});
    }
    return out;
  }
  void expect(int token, int head, double* out) const {
    std::vector<double> weight(kTokens);
    double total = 0.0;
    for (int t = token < kFirst ? 0 : kFirst; t <= token; t++) {
      for (int d = 0; d < kDim; d++)
        weight[t] += double{q[(token * kHeads + head) * kDim + d]} * k[(t * kKvHeads + head / 2) * kDim + d];
      total += weight[t] = std::exp(1.5 * weight[t]);
    }
    for (int t = 0; t <= token; t++)
      for (int d = 0; d < value_dim; d++) out[d] += weight[t] / total * v[(t * kKvHeads + head / 2) * value_dim + d];
  }
};

void attention_matches_its_definition() {
  constexpr int kTokens = AttentionTest::kTokens, kHeads = AttentionTest::kHeads;
  for (const int value_dim : {8, 40, 80}) {
    AttentionTest test{value_dim};
    std::vector<double> want(kTokens * kHeads * value_dim);
    for (int i = 0; i < kTokens * kHeads; i++) test.expect(i / kHeads, i % kHeads, &want[i * value_dim]);
    for_each_variant([&](const Kernels&) {
      const std::vector<float> out = test.run(1, kTokens);
      CHECK(close(want, out));
      CHECK(same_bits(out, test.run(4, kTokens)) && same_bits(out, test.run(1, 1)));
    });
  }
}

void checksums_are_those_of_xxh3() {
  const std::vector<uint8_t> bytes = file_bytes(0, 20000);
  for_each_variant([&](const Kernels& kernels) {
    CHECK(kernels.checksum(bytes.data(), 0) == 0x2d06800538d394c2u &&
          kernels.checksum(bytes.data(), 100) == 0x604833b2d90d0189u);
    CHECK(kernels.checksum(bytes.data(), 20000) == 0x68288119431c0e24u);
  });
}

void check_packing(const std::vector<float>& source, int columns, int bits, int group) {
  const int outputs = static_cast<int>(source.size()) / columns;
  Matrix m = {{nullptr, outputs, (columns + group - 1) / group * group, bits, group}};
  std::vector<int32_t> order(outputs);
  for (int o = 0; o < outputs; o++) order[o] = o % 9 == 4 ? -1 : outputs - 1 - o;
  const auto pack = [&](const Kernels& kernels, int threads) {
    ThreadPool pool(threads);
    std::vector<uint8_t> bytes(m.packed.bytes(), 0xcc);
    const WeightRows rows = {source.data(), WeightType::float32, columns, columns};
    CHECK(pack_matrix(pool, kernels, rows, order.data(), m.packed, bytes.data()) == -1);
    return bytes;
  };
  m.bytes = pack(*find_kernels("portable"), 1);
  for_each_variant([&](const Kernels& kernels) { CHECK(pack(kernels, 3) == m.bytes); });
  m.packed.data = m.bytes.data();
  unpack_matrix(m.packed, m.weights.data());
  // Of a largest weight of 1: half a step and the rounding of the scale; with 4 bits also what is clipped.
  const float bound = bits == 4 ? 0.25f : 0.57f / 127.0f;
  for (int i = 0; i < outputs * m.packed.inputs; i++) {
    const int row = order[i / m.packed.inputs], column = i % m.packed.inputs;
    CHECK(std::fabs(m.weights[i] - (row < 0 || column >= columns ? 0.0f : source[row * columns + column])) <= bound);
  }
}

void packing_comes_back_close() {
  Random random{6};
  for (const int bits : {4, 8})
    for (const int group : {32, 64, 128}) check_packing(random.values(70 * 150), 150, bits, group);
}

struct ExpertTest {
  // More tokens than the scratch has room for, and than one task multiplies.
  static constexpr int kTokens = 230, kRoom = 200, kHidden = 64, kWidth = 48, kGroup = 32;
  Random random{7};
  Matrix gate_up = random_matrix(random, 2 * kWidth, kHidden, 4, kGroup),
         down = random_matrix(random, kHidden, kHidden, 8, kGroup);
  std::vector<float> x = random.values(kTokens * kHidden), weights = random.values(kTokens);

  std::vector<float> run(int threads, bool quantized, int at_once) {
    CpuDevice device(threads);
    Quantized q{kTokens, kHidden, kGroup}, s{kRoom, kHidden, kGroup};
    device.quantize({x.data(), kTokens, kHidden}, kHidden, kHidden, kGroup, q.codes.data(), q.scales.data(), q.sums.data());
    const Activations in = quantized ? Activations{q.view(), nullptr, 0} : Activations{{}, x.data(), kHidden};
    std::vector<float> hidden(kRoom * kHidden, NAN), y(kTokens * kHidden);
    std::vector<int32_t> from(kTokens), to(kTokens);
    for (int i = 0; i < kTokens; i++) from[i] = kTokens - 1 - i, to[i] = (i + 7) % kTokens;
    for (int i = 0; i < kTokens; i += at_once)
      device.expert({gate_up.packed, down.packed}, in, &from[i], {&to[i], &weights[i]}, std::min(at_once, kTokens - i),
                    {hidden.data(), s.codes.data(), s.scales.data(), s.sums.data(), kRoom}, y.data(), kHidden);
    return y;
  }
  std::vector<double> expected() const {
    const std::vector<double> gu = products(gate_up, kTokens, [&](int r, int k) { return x[(kTokens - 1 - r) * kHidden + k]; });
    const std::vector<double> results = products(down, kTokens, [&](int r, int k) {
      const double* gate = &gu[r * 2 * kWidth + k / 16 * kPanel + k % 16];
      return k < kWidth ? silu(gate[0]) * gate[16] : 0.0;
    });
    std::vector<double> y(results.size());
    for (int i = 0; i < kTokens * kHidden; i++) y[(i + 7 * kHidden) % (kTokens * kHidden)] = weights[i / kHidden] * results[i];
    return y;
  }
};

void experts_do_not_depend_on_threads_or_company() {
  ExpertTest test;
  const std::vector<double> want = test.expected();
  for_each_variant([&](const Kernels&) {
    for (const bool quantized : {false, true}) {
      const std::vector<float> y = test.run(1, quantized, ExpertTest::kTokens);
      CHECK(quantized || close(want, y));
      CHECK(same_bits(y, test.run(4, quantized, ExpertTest::kTokens)) && same_bits(y, test.run(1, quantized, 1)));
    }
  });
}

void check_routing(const float* logits, int experts, int top, bool normalise, const int32_t* ids, const float* weights) {
  std::vector<int32_t> order(experts);
  for (int e = 0; e < experts; e++) order[e] = e;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  CHECK(std::equal(ids, ids + top, order.begin()));
  double total = 0.0;
  for (int i = 0; i < (normalise ? top : experts); i++) total += std::exp(double{logits[order[i]]});
  for (int i = 0; i < top; i++) CHECK(std::fabs(weights[i] - std::exp(double{logits[order[i]]}) / total) < 1e-6);
}

void routing_breaks_ties_by_id() {
  constexpr int kRows = 40, kExperts = 10, kLanes = 16, kTop = 4;
  Random random{8};
  std::vector<float> logits(kRows * kLanes, 99.0f), weights(kRows * kTop);  // lanes behind the experts do not count
  std::vector<int32_t> ids(kRows * kTop);
  for (int i = 0; i < kRows * kExperts; i++) logits[i / kExperts * kLanes + i % kExperts] = static_cast<float>(random.below(4));
  for (const bool normalise : {false, true}) {
    route({kExperts, kTop, normalise}, logits.data(), kRows, kLanes, ids.data(), weights.data());
    for (int r = 0; r < kRows; r++)
      check_routing(&logits[r * kLanes], kExperts, kTop, normalise, &ids[r * kTop], &weights[r * kTop]);
  }
}

struct Test {
  const char* name;
  void (*run)();
};

#define TEST(name) {#name, name}
const Test kTests[] = {TEST(pool_runs_every_index_once),
                       TEST(pool_wakes_sleeping_workers),
                       TEST(arena_is_aligned_zeroed_writable),
                       TEST(reader_reads_runs_direct_and_buffered),
                       TEST(reader_reports_failed_pages),
                       TEST(reader_reports_what_cannot_be_read),
                       TEST(reader_cancels),
                       TEST(reader_leaves_no_thread),
                       TEST(reader_publishes_failures_last),
                       TEST(reader_wakes_who_waits_for_a_cancelled_page),
                       TEST(codes_are_exact_in_every_variant),
                       TEST(products_match_their_definition),
                       TEST(float_kernels_match_their_definition),
                       TEST(attention_matches_its_definition),
                       TEST(checksums_are_those_of_xxh3),
                       TEST(packing_comes_back_close),
                       TEST(experts_do_not_depend_on_threads_or_company),
                       TEST(routing_breaks_ties_by_id)};

bool passes(const Test& test) {
  std::string failure;
  where.clear();
  try {
    test.run();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  std::printf("%s %s%s%s\n", failure.empty() ? "ok    " : "FAILED", test.name, failure.empty() ? "" : ": ", failure.c_str());
  std::fflush(stdout);
  return failure.empty();
}

}  // namespace

int main(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const Test& test : kTests)
    if (argc < 2 || std::strcmp(argv[1], test.name) == 0) (passes(test) ? passed : failed)++;
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed > 0 || passed == 0;
}
