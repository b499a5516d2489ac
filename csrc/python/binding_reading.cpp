// Arena, reader lanes and embedding records.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <system_error>

#include "core/arena.h"
#include "core/reader.h"
#include "python/binding.h"

namespace estream::binding {

namespace {

// Embedding records: a row's bytes, then the XXH3-64 of them.
constexpr size_t kSeal = sizeof(uint64_t);

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

}  // namespace

void bind_reading(nb::module_& m) {
  nb::class_<Arena>(m, "Arena")
      .def(nb::init<size_t>(), "size"_a)
      .def_prop_ro("address", [](const Arena& a) { return reinterpret_cast<uintptr_t>(a.base()); })
      .def("bytes", &arena_bytes)
      .def("lock", &Arena::lock)
      .def(
          "populate",
          [](Arena& a, size_t offset, size_t bytes) {
            require(offset <= a.bytes() && bytes <= a.bytes() - offset, "the part lies outside the arena");
            a.populate(offset, bytes);
          },
          "offset"_a, "size"_a, ReleaseGil());

  nb::class_<Reader>(m, "Reader")
      .def(
          "__init__",
          [](Reader* self, const std::vector<std::string>& paths, int lanes, size_t request_bytes, bool direct) {
            require(lanes >= 1 && lanes <= 64, "lanes must lie in 1..64");
            require(request_bytes >= 4096 && request_bytes % 4096 == 0, "request_bytes must be a multiple of 4096");
            try {
              new (self) Reader(paths, lanes, request_bytes, direct, fastest_kernels().checksum);
            } catch (const std::system_error& e) {
              // Python knows the numbers of POSIX, into which other systems' are translated.
              PyErr_SetObject(PyExc_OSError, nb::make_tuple(e.code().default_error_condition().value(), e.what()).ptr());
              throw nb::python_error();
            }
          },
          "paths"_a, "lanes"_a, "request_bytes"_a, "direct"_a)
      .def(
          "submit",
          [](Reader& r, int file, uint64_t offset, uintptr_t address, uint64_t length,
             const std::vector<std::tuple<uint64_t, uint64_t, uint64_t, bool>>& pages) {
            std::vector<PagePart> parts;
            for (const auto& [begin, bytes, checksum, verify] : pages) {
              require(begin + bytes <= length && bytes > 0, "a page lies outside its run");
              require(parts.empty() || begin >= parts.back().begin + parts.back().length, "pages of a run must rise");
              parts.push_back({begin, bytes, checksum, verify});
            }
            return r.submit(file, offset, reinterpret_cast<uint8_t*>(address), length, parts);
          },
          "file"_a, "offset"_a, "address"_a, "length"_a, "pages"_a)
      .def(
          "gather",
          [](Reader& r, int file, const std::vector<std::tuple<uint64_t, uintptr_t, uint64_t>>& parts) {
            require(!parts.empty(), "nothing to gather");
            std::vector<Scattered> scattered;
            for (const auto& [offset, address, length] : parts)
              scattered.push_back({offset, reinterpret_cast<uint8_t*>(address), length});
            return r.gather(file, scattered);
          },
          "file"_a, "parts"_a)
      .def(
          "wait",
          [](Reader& r, uint64_t ticket, double timeout_s) {
            const ReadOutcome o = r.wait(ticket, timeout_s);
            return std::make_tuple(std::string(state_name(o.state)), o.error, o.file_offset);
          },
          "ticket"_a, "timeout_s"_a, ReleaseGil())
      .def("is_published", &Reader::is_published, "ticket"_a)
      .def("cancel", &Reader::cancel, ReleaseGil())
      .def("direct", &Reader::direct, "file"_a)
      .def("record", &Reader::record, "on"_a)
      .def("take_events",
           [](Reader& r) {
             std::vector<std::tuple<int, bool, int, uint64_t, uint64_t, double, double>> events;
             for (const ReaderEvent& e : r.take_events())
               events.emplace_back(e.lane, e.checksum, e.file, e.offset, e.bytes, e.begin_s, e.end_s);
             return events;
           })
      .def("stats", [](Reader& r) {
        const ReaderStats s = r.stats();
        return std::make_tuple(s.bytes, s.requests, s.busy_s, s.checksum_s);
      });
  m.def("seal_rows", &seal_rows, "rows"_a.noconvert(), "records"_a.noconvert(), ReleaseGil());
  m.def("open_records", &open_records, "data"_a.noconvert(), "offsets"_a.noconvert(), "rows"_a.noconvert(), ReleaseGil());
  m.def(
      "checksum", [](const ConstBytes& data) { return fastest_kernels().checksum(data.data(), data.size()); },
      "data"_a.noconvert(), ReleaseGil());
}

}  // namespace estream::binding
