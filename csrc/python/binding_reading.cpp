// Arena, reader lanes and embedding records.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <limits>
#include <system_error>

#include "core/arena.h"
#include "core/checksum.h"
#include "core/reader.h"
#include "python/binding.h"

namespace estream::binding {

namespace {

// Embedding records: a row's bytes, then the XXH3-64 of them.
constexpr size_t kSeal = sizeof(uint64_t);

// In seconds; clocks overflow far beyond it.
constexpr double kLongestWait = 1e6;

void seal_rows(const Array<const uint8_t, 2>& rows, const Array<uint8_t, 2>& records) {
  require(records.shape(0) == rows.shape(0) && records.shape(1) == rows.shape(1) + kSeal, "records do not fit the rows");
  for (size_t r = 0; r < rows.shape(0); r++) {
    const uint8_t* row = rows.data() + r * rows.shape(1);
    uint8_t* record = records.data() + r * records.shape(1);
    const uint64_t sum = fastest_kernels().checksum(row, rows.shape(1));
    std::memcpy(record, row, rows.shape(1));
    std::memcpy(record + rows.shape(1), &sum, kSeal);
  }
}

// Copies the row of each record at `offsets` to `rows`; returns the first index whose seal is wrong, or -1.
int64_t open_records(const ConstBytes& data, const Array<const int64_t, 1>& offsets, const Array<uint8_t, 2>& rows) {
  require(rows.shape(0) == offsets.shape(0), "rows and offsets differ in length");
  for (size_t r = 0; r < rows.shape(0); r++) {
    const int64_t offset = offsets.data()[r];
    require(offset >= 0 && static_cast<uint64_t>(offset) + rows.shape(1) + kSeal <= data.size(), "a record is out of range");
    uint64_t sum;
    std::memcpy(&sum, data.data() + offset + rows.shape(1), kSeal);
    if (fastest_kernels().checksum(data.data() + offset, rows.shape(1)) != sum) return static_cast<int64_t>(r);
    std::memcpy(rows.data() + r * rows.shape(1), data.data() + offset, rows.shape(1));
  }
  return -1;
}

nb::ndarray<uint8_t, nb::numpy, nb::ndim<1>> arena_bytes(nb::handle_t<Arena> self) {
  auto& arena = nb::cast<Arena&>(self);
  return {arena.base(), {arena.bytes()}, self};
}

const char* state_name(ReadState state) {
  switch (state) {
    case ReadState::pending:
      return "pending";
    case ReadState::ready:
      return "ready";
    case ReadState::failed_io:
      return "io";
    case ReadState::failed_short:
      return "short";
    case ReadState::failed_checksum:
      return "checksum";
    case ReadState::cancelled:
      return "cancelled";
  }
  return "unknown";
}

void bind_arena(nb::module_& m) {
  nb::class_<Arena>(m, "Arena", "Fixed memory for pages and activations, aligned to 2 MiB. Its addresses never change.")
      .def(nb::init<size_t>(), "size"_a, "Reserve ``size`` bytes of zeros, without backing them. Raises MemoryError.")
      .def_prop_ro(
          "address", [](const Arena& a) { return reinterpret_cast<uintptr_t>(a.base()); }, "The address of the first byte.")
      .def("bytes", &arena_bytes, "The whole arena as an array that shares its memory and keeps it alive.")
      .def("lock", &Arena::lock, "Keep the arena from being swapped out. False where the limit on locked memory forbids it.")
      .def(
          "populate",
          [](Arena& a, size_t offset, size_t bytes) {
            require(offset <= a.bytes() && bytes <= a.bytes() - offset, "the part lies outside the arena");
            a.populate(offset, bytes);
          },
          "offset"_a, "size"_a, ReleaseGil(),
          "Back a part with memory now. Raises MemoryError where the system has none left.");
}

void check_file(const Reader& reader, int file) {
  if (file < 0 || file >= reader.files()) throw nb::index_error("no such file of this reader");
}

// Positions in files are signed numbers of the system.
bool lies_in_a_file(uint64_t offset, uint64_t length) {
  constexpr uint64_t kEnd = std::numeric_limits<int64_t>::max();
  return length > 0 && length <= kEnd && offset <= kEnd - length;
}

nb::class_<Reader> bind_reader(nb::module_& m) {
  return nb::class_<Reader>(
             m, "Reader",
             R"(Reader lanes: threads that each keep one read in flight, from files into memory. A file is named by its
index in ``paths``.)")
      .def(
          "__init__",
          [](Reader* self, const std::vector<nb::object>& given, int lanes, size_t request_bytes, bool direct) {
            std::vector<std::string> paths;
            for (const nb::object& path : given) paths.push_back(system_path(path));
            require(lanes >= 1 && lanes <= 64, "lanes must lie in 1..64");
            require(request_bytes >= 4096 && request_bytes <= 1u << 30 && request_bytes % 4096 == 0,
                    "request_bytes must be a multiple of 4096 up to 1 GiB");
            try {
              new (self) Reader(paths, lanes, request_bytes, direct, fastest_kernels().checksum);
            } catch (const std::system_error& e) {
              // Python knows the numbers of POSIX, into which other systems' are translated.
              PyErr_SetObject(PyExc_OSError, nb::make_tuple(e.code().default_error_condition().value(), e.what()).ptr());
              throw nb::python_error();
            }
          },
          "paths"_a, "lanes"_a, "request_bytes"_a, "direct"_a,
          R"(Open the files and start the lanes, 1 to 64 of them.

Runs are read in requests of ``request_bytes``, a multiple of 4096. With ``direct``, reads bypass the page
cache where the file system allows it. Raises OSError with the path where a file cannot be opened.)");
}

void bind_asking(nb::class_<Reader>& reader) {
  reader
      .def(
          "submit",
          [](Reader& r, int file, uint64_t offset, uintptr_t address, uint64_t length,
             const std::vector<std::tuple<uint64_t, uint64_t, uint64_t, bool>>& pages) {
            check_file(r, file);
            require(address != 0 && lies_in_a_file(offset, length), "a run needs an address, and bytes that can lie in a file");
            require(!pages.empty(), "a run needs pages");
            std::vector<PagePart> parts;
            for (const auto& [begin, bytes, checksum, verify] : pages) {
              require(bytes > 0 && begin <= length && bytes <= length - begin, "a page lies outside its run");
              require(parts.empty() || begin >= parts.back().begin + parts.back().length, "pages of a run must rise");
              parts.push_back({begin, bytes, checksum, verify});
            }
            return r.submit(file, offset, reinterpret_cast<uint8_t*>(address), length, parts);
          },
          "file"_a, "offset"_a, "address"_a, "length"_a, "pages"_a,
          R"(Ask for a run: ``length`` bytes at ``offset`` of a file, to ``address``. Does not wait for the read.

Where reads are direct, the three are multiples of 4096. ``pages`` are the parts of the run that are
published on their own, in rising order: tuples (begin within the run, length, XXH3-64 checksum, whether to
verify that). Returns the ticket of the first page; the next pages have the next tickets. Raises
IndexError for an unknown file.)")
      .def(
          "gather",
          [](Reader& r, int file, const std::vector<std::tuple<uint64_t, uintptr_t, uint64_t>>& parts) {
            check_file(r, file);
            require(!parts.empty(), "nothing to gather");
            std::vector<Scattered> scattered;
            for (const auto& [offset, address, length] : parts) {
              require(address != 0 && lies_in_a_file(offset, length),
                      "a part needs an address, and bytes that can lie in a file");
              scattered.push_back({offset, reinterpret_cast<uint8_t*>(address), length});
            }
            return r.gather(file, scattered);
          },
          "file"_a, "parts"_a,
          R"(Ask for parts that lie anywhere in a file: tuples (offset, address, length). They have no checksum.

Returns one ticket for all of them. Does not wait for the reads.)");
}

void bind_outcomes(nb::class_<Reader>& reader) {
  reader
      .def(
          "wait",
          [](Reader& r, uint64_t ticket, double timeout_s) {
            require(timeout_s >= 0 && timeout_s <= kLongestWait, "a timeout must lie in 0..1e6 seconds");
            const ReadOutcome o = r.wait(ticket, timeout_s);
            return std::make_tuple(std::string(state_name(o.state)), o.error, o.file_offset);
          },
          "ticket"_a, "timeout_s"_a, ReleaseGil(),
          R"(Wait until a page is published, for at most ``timeout_s``. Raises IndexError for an unknown ticket.

Returns (state, error, offset). The state is "pending" (the time is over), "ready", "io" (the system refused
a read), "short" (the file ended), "checksum" (the bytes are not those that were written) or "cancelled".
``error`` is the system's error number for "io", else 0. ``offset`` is where in the file a read failed; in
the other states it is where the page begins, or the first of the gathered parts.)")
      .def("is_published", &Reader::is_published, "ticket"_a,
           "Whether waiting for the ticket would return at once. Raises IndexError for an unknown ticket.")
      .def("withdraw", &Reader::withdraw, "tickets"_a, ReleaseGil(),
           R"(Drop the requests that no lane has begun and that serve none but these pages; returns their bytes.

Does not wait. A page that lost a request is published as "cancelled" once no lane writes to its memory.)")
      .def("cancel", &Reader::cancel, ReleaseGil(),
           "Cancel every pending page and wait for the requests in flight. Afterwards no lane writes to memory.")
      .def(
          "direct",
          [](const Reader& r, int file) {
            check_file(r, file);
            return r.direct(file);
          },
          "file"_a, "Whether reads of the file bypass the page cache. Raises IndexError for an unknown file.")
      .def("record", &Reader::record, "on"_a, "Start or stop recording events.")
      .def(
          "take_events",
          [](Reader& r) {
            std::vector<std::tuple<int, bool, int, uint64_t, uint64_t, double, double>> events;
            for (const ReaderEvent& e : r.take_events())
              events.emplace_back(e.lane, e.checksum, e.file, e.offset, e.bytes, e.begin_s, e.end_s);
            return events;
          },
          R"(The events recorded since the last call: tuples (lane, whether it is a checksum and not a read, file,
offset, bytes, begin, end). Times are those of the steady clock, which on Linux is ``time.monotonic``.)")
      .def(
          "stats",
          [](Reader& r) {
            const ReaderStats s = r.stats();
            return std::make_tuple(s.bytes, s.requests, s.busy_s, s.checksum_s);
          },
          R"(Totals since construction: (bytes read, requests, seconds with at least one read in flight, seconds of
computing checksums summed over the lanes).)");
}

void bind_records(nb::module_& m) {
  m.def("seal_rows", &seal_rows, "rows"_a.noconvert(), "records"_a.noconvert(), ReleaseGil(),
        "Write embedding records [rows, row bytes + 8]: each row [rows, row bytes], then its XXH3-64.");
  m.def("open_records", &open_records, "data"_a.noconvert(), "offsets"_a.noconvert(), "rows"_a.noconvert(), ReleaseGil(),
        R"(Copy the rows of the embedding records at ``offsets`` [rows] of ``data`` to ``rows`` [rows, row bytes].

Returns -1, or the index of the first record whose checksum is wrong; rows from that one on are not copied.)");
  m.def(
      "checksum", [](const ConstBytes& data) { return fastest_kernels().checksum(data.data(), data.size()); },
      "data"_a.noconvert(), ReleaseGil(), "The XXH3-64 of the bytes.");
  nb::class_<Checksum>(m, "Checksum", "The XXH3-64 of bytes that come in pieces.")
      .def(nb::init<>())
      .def(
          "add", [](Checksum& c, const ConstBytes& data) { c.add(data.data(), data.size()); }, "data"_a.noconvert(),
          "Add the next bytes. One thread at a time.")
      .def_prop_ro("value", &Checksum::value, "The checksum of all bytes so far.");
}

}  // namespace

void bind_reading(nb::module_& m) {
  bind_arena(m);
  auto reader = bind_reader(m);
  bind_asking(reader);
  bind_outcomes(reader);
  bind_records(m);
}

}  // namespace estream::binding
