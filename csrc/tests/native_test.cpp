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
#include <limits>
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
    if (!(std::fabs(expected[i] - got[i]) <= 1e-4 * largest)) return false;
  return expected.size() == got.size();
}

// Makes each variant in turn the one that select_kernels chooses.
void for_each_variant(const std::function<void(const Kernels&)>& body) {
  const char* set = std::getenv("ESTREAM_KERNELS");
  const std::string before = set ? set : "";
  for (const char* const* name = available_kernels(); *name; name++) {
    setenv("ESTREAM_KERNELS", *name, 1);
    where = *name;
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
      std::vector<int> hits(count), want(count);
      for (int i = 0; i < count; i++) want[i] = i * i + 1;
      // Plain integers: a sanitizer sees whether a run's writes happen before its end.
      pool.run(count, [&](int index, int thread) { hits[index] += thread >= 0 && thread < threads ? index * index + 1 : -1; });
      CHECK(hits == want);
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
      CHECK(std::chrono::steady_clock::now() < deadline);
    }
  }
}

void arena_is_aligned_zeroed_writable() {
  for (const size_t bytes : {size_t{1}, (size_t{2} << 20) + 1, size_t{5} << 20}) {
    Arena arena(bytes);
    CHECK(arena.bytes() == bytes && reinterpret_cast<uintptr_t>(arena.base()) % (2u << 20) == 0);
    CHECK(std::all_of(arena.base(), arena.base() + bytes, [](uint8_t b) { return b == 0; }));
    std::memset(arena.base(), 0xa5, bytes);
    CHECK(arena.base()[0] == 0xa5 && arena.base()[bytes - 1] == 0xa5);
  }
}

constexpr uint64_t kBlock = 4096, kFileBytes = (6u << 20) + 3 * kBlock;

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
  const std::vector<std::string> paths = {path.string()};

  explicit TestFile(uint64_t bytes = kFileBytes) {
    const std::vector<uint8_t> content = file_bytes(0, bytes);
    std::ofstream file(path, std::ios::binary);
    CHECK(!!file.write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(bytes)).flush());
  }
  ~TestFile() { std::filesystem::remove(path); }
};

uint64_t xxh3(const void* data, size_t bytes) { return select_kernels().checksum(data, bytes); }

ReadOutcome settled(Reader& reader, uint64_t ticket) {
  for (int i = 0; i < 600; i++)
    if (const ReadOutcome outcome = reader.wait(ticket, 0.1); outcome.state != ReadState::pending) return outcome;
  throw std::runtime_error("a page was not published within a minute");
}

// A run of whole blocks, cut into pages of any length with gaps between them.
std::vector<PagePart> random_pages(Random& random, uint64_t offset, uint64_t length) {
  std::vector<PagePart> pages;
  for (uint64_t begin = 0; begin < length; begin += pages.back().length + random.below(9000)) {
    const uint64_t bytes = std::min<uint64_t>(length - begin, 1 + random.below(300000));
    pages.push_back({begin, bytes, xxh3(file_bytes(offset + begin, bytes).data(), bytes), true});
  }
  return pages;
}

void check_runs(Reader& reader, Arena& arena, Random& random) {
  struct Run {
    uint64_t offset, at, ticket;
    std::vector<PagePart> pages;
  };
  std::vector<Run> runs;
  for (uint64_t at = 0; at < arena.bytes();) {
    const uint64_t offset = random.below(1000) * kBlock;
    const uint64_t length = std::min<uint64_t>(arena.bytes() - at, (1 + random.below(at == 0 ? 530 : 100)) * kBlock);
    runs.push_back({offset, at, 0, random_pages(random, offset, length)});
    runs.back().ticket = reader.submit(0, offset, arena.base() + at, length, runs.back().pages);
    at += length;
  }
  for (const Run& run : runs)
    for (size_t i = 0; i < run.pages.size(); i++) {
      CHECK(settled(reader, run.ticket + i).state == ReadState::ready && reader.is_published(run.ticket + i));
      CHECK(holds_file(arena.base() + run.at + run.pages[i].begin, run.offset + run.pages[i].begin, run.pages[i].length));
    }
}

void reader_reads_runs() {
  const TestFile file;
  Random random{1};
  Arena arena(700 * kBlock);
  for (const size_t request : {size_t{4096}, size_t{12288}, size_t{2} << 20})
    for (const int lanes : {1, 2, 8})
      for (const bool direct : {false, true}) {
        where = std::to_string(lanes) + " lanes, requests of " + std::to_string(request);
        std::memset(arena.base(), 0, arena.bytes());
        Reader reader(file.paths, lanes, request, direct, xxh3);
        check_runs(reader, arena, random);
      }
}

void reader_reports_failures() {
  for (const uint64_t size : {uint64_t{10000}, 3 * kBlock})
    for (const bool direct : {false, true}) {
      const TestFile file(size);
      Arena arena(8 * kBlock);
      Reader reader(file.paths, 2, 2 * kBlock, direct, xxh3);
      const std::vector<PagePart> pages = {{0, kBlock, xxh3(file_bytes(0, kBlock).data(), kBlock), true},
                                           {5000, 3000, 1, true},
                                           {8192, 100, 1, false},
                                           {9000, 5000, 0, true},
                                           {5 * kBlock, 1, 0, true}};
      const uint64_t first = reader.submit(0, 0, arena.base(), 8 * kBlock, pages);
      const auto is = [&](int i, ReadState state) { return settled(reader, first + i).state == state; };
      CHECK(is(0, ReadState::ready) && is(1, ReadState::failed_checksum) && settled(reader, first + 1).file_offset == 5000);
      CHECK(is(3, ReadState::failed_short) && settled(reader, first + 3).file_offset == size);
      CHECK(is(4, ReadState::failed_short) && settled(reader, first + 4).file_offset == 4 * kBlock);
    }
}

template <typename Error, typename Body>
bool throws(Body&& body) {
  try {
    body();
  } catch (const Error&) {
    return true;
  }
  return false;
}

void reader_reports_errors() {
  const TestFile file;
  Arena arena(kBlock);
  std::vector<std::string> paths = {file.paths[0], file.paths[0] + ".missing"};
  for (const bool direct : {false, true}) CHECK(throws<std::system_error>([&] { Reader(paths, 2, kBlock, direct, xxh3); }));
  paths[1] = file.path.parent_path().string();  // a directory can be opened, but not read
  Reader reader(paths, 1, kBlock, true, xxh3);
  const ReadOutcome outcome = settled(reader, reader.submit(1, 0, arena.base(), kBlock, {{0, kBlock, 0, false}}));
  CHECK(outcome.state == ReadState::failed_io && outcome.error == EISDIR && outcome.file_offset == 0);
  CHECK(throws<std::out_of_range>([&] { reader.wait(1000, 0.0); }));
}

// So slow that the queue stays long.
uint64_t slow_zero(const void*, size_t) {
  sleep_ms(2);
  return 0;
}

uint64_t submit_many(Reader& reader, Arena& arena) {
  std::vector<PagePart> pages;
  for (uint64_t begin = 0; begin < arena.bytes(); begin += kBlock) pages.push_back({begin, kBlock, 0, true});
  const uint64_t first = reader.submit(0, 0, arena.base(), arena.bytes(), pages);
  CHECK(settled(reader, first).state == ReadState::ready);
  return first;
}

bool stays_as_it_is(const Arena& arena) {
  const std::vector<uint8_t> before(arena.base(), arena.base() + arena.bytes());
  sleep_ms(20);
  return std::memcmp(before.data(), arena.base(), before.size()) == 0;
}

void reader_cancels() {
  const TestFile file;
  Arena arena(1000 * kBlock);
  Reader reader(file.paths, 3, kBlock, true, slow_zero);
  const uint64_t first = submit_many(reader, arena);
  reader.cancel();
  CHECK(stays_as_it_is(arena));
  int cancelled = 0;
  for (int i = 0; i < 1000; i++) {
    const uint8_t* page = arena.base() + i * kBlock;
    const bool begun = reader.wait(first + i, 0.0).state == ReadState::ready;
    CHECK(begun || reader.wait(first + i, 0.0).state == ReadState::cancelled);
    CHECK(begun ? holds_file(page, i * kBlock, kBlock) : std::all_of(page, page + kBlock, [](uint8_t b) { return b == 0; }));
    cancelled += !begun;
  }
  CHECK(cancelled > 0 && cancelled < 1000);
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
  Arena arena(1000 * kBlock);
  std::thread([] {}).join();  // a sanitizer may start a thread of its own with the first one
  const int64_t before = live_threads();
  {
    Reader reader(file.paths, 8, kBlock, false, slow_zero);
    submit_many(reader, arena);
  }
  CHECK(stays_as_it_is(arena) && arena.base()[999 * kBlock] == 0);
  // The system may list a thread for a moment after it was joined.
  for (int i = 0; i < 1000 && live_threads() > before; i++) sleep_ms(1);
  CHECK(live_threads() <= before);
}

struct Matrix {
  std::vector<uint8_t> bytes;
  PackedMatrix packed;
  std::vector<float> weights;  // [outputs, inputs]
};

// Any codes; scales of either sign between 2^-7 and 2^-6.
Matrix random_matrix(Random& random, int outputs, int inputs, int bits, int group) {
  Matrix m = {{}, {nullptr, outputs, inputs, bits, group}, std::vector<float>(outputs * inputs)};
  m.bytes.resize(m.packed.bytes());
  for (uint8_t& byte : m.bytes) byte = static_cast<uint8_t>(random.bits());
  for (size_t behind = m.packed.block_bytes(); behind <= m.bytes.size(); behind += m.packed.block_bytes())
    for (size_t i = behind - 2 * kPanel + 1; i < behind; i += 2) m.bytes[i] = static_cast<uint8_t>((m.bytes[i] & 0x83) | 0x20);
  m.packed.data = m.bytes.data();
  unpack_matrix(m.packed, m.weights.data());
  return m;
}

struct Quantized {
  int rows, columns, group;
  std::vector<int8_t> codes = std::vector<int8_t>(rows * columns);
  std::vector<float> scales = std::vector<float>(rows * columns / group);
  std::vector<int32_t> sums = std::vector<int32_t>(rows * columns / group);

  QuantizedRows view() const { return {codes.data(), scales.data(), sums.data(), columns, columns / group}; }
  Quantized&& of(const Kernels& kernels, const std::vector<float>& x) && {
    const int from = static_cast<int>(x.size()) / rows, groups = columns / group;
    for (int r = 0; r < rows; r++)
      kernels.quantize_row(&x[r * from], from, columns, group, &codes[r * columns], &scales[r * groups], &sums[r * groups]);
    return std::move(*this);
  }
};

void codes_are_exact_in_every_variant() {
  Random random{2};
  std::vector<float> x = random.values(6 * 200);
  const float factors[] = {1.0f, 1e30f, 3e-3f, 0.0f, 1e-36f, 1e-40f};
  for (int i = 0; i < 6 * 200; i++) x[i] *= factors[i / 200];
  for (const int group : {32, 64, 128}) {
    const Quantized first = Quantized{6, 256, group}.of(*find_kernels("portable"), x);
    for_each_variant([&](const Kernels& kernels) {
      const Quantized q = Quantized{6, 256, group}.of(kernels, x);
      CHECK(same_bits(q.codes, first.codes) && same_bits(q.scales, first.scales) && q.sums == first.sums);
    });
    for (int g = 0; g < 6 * 256 / group; g++) {
      std::vector<float> values(group);
      for (int k = 0; k < group; k++)
        if (const int column = g * group % 256 + k; column < 200) values[k] = x[g * group / 256 * 200 + column];
      float peak = 0.0f;
      for (const float v : values) peak = std::max(peak, std::fabs(v));
      const float inverse = peak > 0.0f ? 127.0f / peak : 0.0f;
      int sum = 0;
      for (int k = 0; k < group; k++) {
        sum += first.codes[g * group + k];
        // Where the peak is subnormal its inverse may be infinite.
        CHECK(std::isinf(inverse) || first.codes[g * group + k] == static_cast<int>(std::nearbyint(values[k] * inverse)));
      }
      CHECK(first.sums[g] == sum && first.scales[g] == peak / 127.0f);
    }
  }
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

// x [rows, inputs] . weights, [rows, outputs].
std::vector<double> products(const Matrix& m, const std::function<double(int, int)>& x, int rows) {
  const int inputs = m.packed.inputs, outputs = m.packed.outputs;
  std::vector<double> y(rows * outputs);
  for (int r = 0; r < rows; r++)
    for (int k = 0; k < inputs; k++) {
      const double value = x(r, k);
      for (int o = 0; o < outputs; o++) y[r * outputs + o] += value * m.weights[o * inputs + k];
    }
  return y;
}

// Runs a product in every way of writing it. `expected` [any row, outputs]; what lies between the results must stay.
void check_writes(const PackedMatrix& w, const std::vector<double>& expected, const int32_t* x_rows, int rows,
                  const std::function<void(int panel, const PanelOutput& out)>& run) {
  for (const Write write : {Write::store, Write::add, Write::swiglu}) {
    if (write == Write::swiglu && w.outputs % kPanel != 0) continue;
    const int width = write == Write::swiglu ? w.outputs / 2 : w.outputs, stride = width + 3;
    std::vector<float> y((rows + 1) * stride, 0.5f), weights(rows, 1.0f);
    std::vector<double> want(y.begin(), y.end());
    std::vector<int32_t> to(rows);
    for (int r = 0; r < rows; r++) {
      to[r] = x_rows ? rows - r : r;
      if (x_rows) weights[r] = 0.25f * static_cast<float>(r + 1);
      const double* p = &expected[(x_rows ? x_rows[r] : r) * w.outputs];
      for (int c = 0; c < width; c++) {
        const double *gate = p + c / 16 * kPanel + c % 16, added = write == Write::add ? 0.5 + weights[r] * p[c] : p[c];
        want[to[r] * stride + c] = write == Write::swiglu ? silu(gate[0]) * gate[16] : added;
      }
    }
    const PanelOutput out = {write, y.data(), stride, x_rows ? to.data() : nullptr, x_rows ? weights.data() : nullptr};
    for (int panel = 0; panel < w.panels(); panel++) run(panel, out);
    CHECK(close(want, y));
  }
}

void check_products(Random& random, const Matrix& m, int rows_from, int rows_to) {
  const PackedMatrix& w = m.packed;
  const std::vector<float> x = random.values(rows_to * w.inputs);
  const Quantized q = Quantized{rows_to, w.inputs, w.group}.of(*find_kernels("portable"), x);
  const auto code = [&](int r, int k) { return double{q.scales[(r * w.inputs + k) / w.group]} * q.codes[r * w.inputs + k]; };
  const std::vector<double> of_codes = products(m, code, rows_to);
  const std::vector<double> of_floats = products(m, [&](int r, int k) { return x[r * w.inputs + k]; }, rows_to);
  std::vector<int32_t> list(rows_to);
  for (int r = 0; r < rows_to; r++) list[r] = (5 * r + 3) % rows_to;
  std::vector<float> scratch((w.group + kFloatRows) * kPanel);
  for_each_variant([&](const Kernels& kernels) {
    for (int rows = rows_from; rows <= rows_to; rows++)
      for (const bool listed : {false, true}) {
        const int32_t* from = listed ? list.data() : nullptr;
        check_writes(w, of_codes, from, rows,
                     [&](int p, const PanelOutput& out) { kernels.matmul_panel(w, p, q.view(), from, rows, out); });
        check_writes(w, of_floats, from, rows, [&](int p, const PanelOutput& out) {
          kernels.matmul_panel_float(w, p, x.data(), w.inputs, from, rows, out, scratch.data());
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
  std::vector<float> x = random.values(3 * 2 * half);
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
  static constexpr int kFirst = 75, kTokens = 117, kCapacity = 96 + 64, kHeads = 4, kKvHeads = 2;
  const AttentionShape shape;
  const int stride = (shape.value_dim + 15) / 16 * 16;
  Random random{5};
  std::vector<float> q = random.values(kTokens * kHeads * shape.head_dim),
                     k = random.values(kTokens * kKvHeads * shape.head_dim);
  std::vector<float> v = random.values(kTokens * kKvHeads * shape.value_dim);
  std::vector<int32_t> positions = std::vector<int32_t>(kTokens), bases = positions, places = positions;

  // The rows of one call, from first to behind.
  void attend(CpuDevice& device, KeyValues kv, int first, int behind, std::vector<float>& out) {
    const int in = kHeads * shape.head_dim, to = kHeads * shape.value_dim;
    device.attention(shape, {&q[first * in], behind - first, in}, &positions[first], &bases[first], kv,
                     {&out[first * to], behind - first, to});
  }
  std::vector<float> run(int threads, int at_once) {
    CpuDevice device(threads);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> keys(kKvHeads * kCapacity * shape.head_dim, nan), values(kKvHeads * kCapacity * stride, nan);
    std::vector<float> out(kTokens * kHeads * shape.value_dim);
    for (int t = 0; t < kTokens; t++) {
      positions[t] = t < kFirst ? t : t - kFirst;
      bases[t] = t < kFirst ? 0 : 96;
      places[t] = positions[t] + bases[t];
    }
    const KeyValues kv = {keys.data(), values.data(), kCapacity};
    device.store_key_values(shape, {k.data(), kTokens, kKvHeads * shape.head_dim},
                            {v.data(), kTokens, kKvHeads * shape.value_dim}, places.data(), kv);
    for (int t = 0; t < kTokens; t += at_once) attend(device, kv, t, std::min(t + at_once, kTokens), out);
    return out;
  }
  void expect(int token, int head, double* out) const {
    const int first = token < kFirst ? 0 : kFirst;
    std::vector<double> weight(token + 1);
    double total = 0.0;
    for (int t = first; t <= token; t++) {
      for (int d = 0; d < shape.head_dim; d++)
        weight[t] +=
            double{q[(token * kHeads + head) * shape.head_dim + d]} * k[(t * kKvHeads + head / 2) * shape.head_dim + d];
      total += weight[t] = std::exp(weight[t] * shape.scale);
    }
    for (int t = first; t <= token; t++)
      for (int d = 0; d < shape.value_dim; d++)
        out[d] += weight[t] / total * v[(t * kKvHeads + head / 2) * shape.value_dim + d];
  }
};

void attention_matches_its_definition() {
  for (const int value_dim : {8, 40, 80}) {
    AttentionTest test{{AttentionTest::kHeads, AttentionTest::kKvHeads, 24, value_dim, 1.5f}};
    std::vector<double> want(AttentionTest::kTokens * AttentionTest::kHeads * value_dim);
    for (int i = 0; i < AttentionTest::kTokens * AttentionTest::kHeads; i++)
      test.expect(i / AttentionTest::kHeads, i % AttentionTest::kHeads, &want[i * value_dim]);
    for_each_variant([&](const Kernels&) {
      const std::vector<float> out = test.run(1, AttentionTest::kTokens);
      CHECK(close(want, out));
      CHECK(same_bits(out, test.run(4, AttentionTest::kTokens)) && same_bits(out, test.run(1, 1)));
    });
  }
}

void checksums_are_equal_in_every_variant() {
  CHECK(xxh3(nullptr, 0) == 0x2d06800538d394c2u);  // XXH3-64 of nothing, as its reference implementation gives it
  const std::vector<uint8_t> bytes = file_bytes(0, 20000);
  for_each_variant([&](const Kernels& kernels) {
    for (const size_t n : {1, 8, 100, 240, 241, 1024, 4096, 19999})
      CHECK(kernels.checksum(&bytes[1], n) == find_kernels("portable")->checksum(&bytes[1], n));
  });
}

void check_packing(const std::vector<float>& source, int columns, int bits, int group) {
  const int outputs = static_cast<int>(source.size()) / columns, inputs = (columns + group - 1) / group * group;
  PackedMatrix m = {nullptr, outputs, inputs, bits, group};
  std::vector<int32_t> order(outputs);
  for (int o = 0; o < outputs; o++) order[o] = o % 9 == 4 ? -1 : outputs - 1 - o;
  const auto pack = [&](const Kernels& kernels, int threads) {
    ThreadPool pool(threads);
    std::vector<uint8_t> bytes(m.bytes(), 0xcc);
    CHECK(pack_matrix(pool, kernels, {source.data(), WeightType::float32, columns, columns}, order.data(), m, bytes.data()) ==
          -1);
    return bytes;
  };
  const std::vector<uint8_t> bytes = pack(*find_kernels("portable"), 1);
  for_each_variant([&](const Kernels& kernels) { CHECK(same_bits(bytes, pack(kernels, 3))); });
  m.data = bytes.data();
  std::vector<float> back(outputs * inputs);
  unpack_matrix(m, back.data());
  for (int i = 0; i < outputs * inputs; i += group) {
    float peak = 0.0f, off = 0.0f;
    for (int k = 0; k < group; k++) {
      const bool padding = order[i / inputs] < 0 || i % inputs + k >= columns;
      const float exact = padding ? 0.0f : source[order[i / inputs] * columns + i % inputs + k];
      peak = std::max(peak, std::fabs(exact));
      off = std::max(off, std::fabs(exact - back[i + k]));
    }
    // Half a step and the rounding of the scale; with 4 bits also what is clipped for the sake of the others.
    CHECK(off <= (bits == 4 ? 0.25f * peak : 0.57f * peak / 127.0f));
  }
}

void packing_comes_back_close() {
  Random random{6};
  for (const int bits : {4, 8})
    for (const int group : {32, 64, 128}) check_packing(random.values(70 * 150), 150, bits, group);
}

struct ExpertTest {
  // More tokens than the scratch has room for, and more than one task multiplies.
  static constexpr int kTokens = 230, kRoom = 200, kHidden = 64, kWidth = 48, kGroup = 32;
  Random random{7};
  Matrix gate_up = random_matrix(random, 2 * kWidth, kHidden, 4, kGroup),
         down = random_matrix(random, kHidden, kHidden, 8, kGroup);
  std::vector<float> x = random.values(kTokens * kHidden), weights = random.values(kTokens);
  std::vector<int32_t> tokens = std::vector<int32_t>(kTokens);

  ExpertTest() {
    for (int i = 0; i < kTokens; i++) tokens[i] = (i * 7 + 3) % kTokens;
  }
  std::vector<float> run(int threads, bool quantized, int at_once) {
    CpuDevice device(threads);
    Quantized q{kTokens, kHidden, kGroup}, s{kRoom, kHidden, kGroup};
    device.quantize({x.data(), kTokens, kHidden}, kHidden, kHidden, kGroup, q.codes.data(), q.scales.data(), q.sums.data());
    const Activations in = quantized ? Activations{q.view(), nullptr, 0} : Activations{{}, x.data(), kHidden};
    std::vector<float> hidden(kRoom * kHidden), y(kTokens * kHidden);
    for (int i = 0; i < kTokens; i += at_once)
      device.expert({gate_up.packed, down.packed}, in, &tokens[i], {&tokens[i], &weights[i]}, std::min(at_once, kTokens - i),
                    {hidden.data(), s.codes.data(), s.scales.data(), s.sums.data(), kRoom}, y.data(), kHidden);
    return y;
  }
  std::vector<double> expected() const {
    const std::vector<double> gu = products(gate_up, [&](int r, int k) { return x[r * kHidden + k]; }, kTokens);
    const auto at = [&](int r, int k) { return k < kWidth ? &gu[r * 2 * kWidth + k / 16 * kPanel + k % 16] : nullptr; };
    std::vector<double> y =
        products(down, [&](int r, int k) { return at(r, k) ? silu(*at(r, k)) * at(r, k)[16] : 0.0; }, kTokens);
    for (int i = 0; i < kTokens * kHidden; i++) y[tokens[i / kHidden] * kHidden + i % kHidden] *= weights[i / kHidden];
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

void routing_breaks_ties_by_id() {
  constexpr int kRows = 40, kExperts = 10, kLanes = 16, kTop = 4;
  Random random{8};
  std::vector<float> logits(kRows * kLanes, 99.0f), weights(kRows * kTop);  // lanes behind the experts do not count
  std::vector<int32_t> ids(kRows * kTop);
  for (int i = 0; i < kRows * kExperts; i++) logits[i / kExperts * kLanes + i % kExperts] = static_cast<float>(random.below(4));
  for (const bool normalise : {false, true}) {
    route({kExperts, kTop, normalise}, logits.data(), kRows, kLanes, ids.data(), weights.data());
    std::vector<double> want;
    for (int r = 0; r < kRows; r++) {
      const float* row = &logits[r * kLanes];
      std::vector<int32_t> order(kExperts);
      for (int e = 0; e < kExperts; e++) order[e] = e;
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
      CHECK(std::equal(&ids[r * kTop], &ids[r * kTop] + kTop, order.begin()));
      double total = 0.0;
      for (int i = 0; i < (normalise ? kTop : kExperts); i++) total += std::exp(row[order[i]]);
      for (int i = 0; i < kTop; i++) want.push_back(std::exp(row[order[i]]) / total);
    }
    CHECK(close(want, weights));
  }
}

struct Test {
  const char* name;
  void (*run)();
};

const Test kTests[] = {
#define TEST(name) {#name, name}
    TEST(pool_runs_every_index_once),
    TEST(pool_wakes_sleeping_workers),
    TEST(arena_is_aligned_zeroed_writable),
    TEST(reader_reads_runs),
    TEST(reader_reports_failures),
    TEST(reader_reports_errors),
    TEST(reader_cancels),
    TEST(reader_leaves_no_thread),
    TEST(codes_are_exact_in_every_variant),
    TEST(products_match_their_definition),
    TEST(float_kernels_match_their_definition),
    TEST(attention_matches_its_definition),
    TEST(checksums_are_equal_in_every_variant),
    TEST(packing_comes_back_close),
    TEST(experts_do_not_depend_on_threads_or_company),
    TEST(routing_breaks_ties_by_id),
};

bool passes(const Test& test) {
  const auto begin = std::chrono::steady_clock::now();
  std::string failure;
  where.clear();
  try {
    test.run();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%s %s %.2f s%s%s\n", failure.empty() ? "ok    " : "FAILED", test.name, seconds.count(),
              failure.empty() ? "" : ": ", failure.c_str());
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
