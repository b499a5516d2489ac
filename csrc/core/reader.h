// Reader lanes: threads that each keep one positioned read in flight, from package files into the arena.
//
// The unit of asking is a run: adjacent bytes of one file that go to adjacent addresses. A run is read in requests of a
// fixed size, by any lanes in any order; the pages inside it are published one by one, each when all of its bytes have
// arrived and its checksum is right. A page that failed is published as failed and says why.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "platform/platform.h"

namespace estream {

struct PagePart {
  uint64_t begin;  // within the run
  uint64_t length;
  uint64_t checksum;
  bool verify;
};

// Bytes of a file that go to an address.
struct Scattered {
  uint64_t offset;
  uint8_t* address;
  uint64_t length;
};

enum class ReadState { pending, ready, failed_io, failed_short, failed_checksum, cancelled };

struct ReadOutcome {
  ReadState state;
  int error;             // the system's number of it, of failed_io
  uint64_t file_offset;  // where it failed
};

// One request or checksum, on the steady clock; for timelines.
struct ReaderEvent {
  int lane;
  bool checksum;
  int file;
  uint64_t offset, bytes;
  double begin_s, end_s;
};

struct ReaderStats {
  uint64_t bytes;
  uint64_t requests;
  double busy_s;      // time with at least one read in flight
  double checksum_s;  // summed over lanes
};

class Reader {
 public:
  using Checksum = uint64_t (*)(const void*, size_t);

  // Throws std::system_error where a file cannot be opened.
  Reader(const std::vector<std::string>& paths, int lanes, size_t request_bytes, bool want_direct, Checksum checksum);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Asks for one run, whose address, offset and length are multiples of 4096 where reads are direct; returns the ticket of its
  // first page, the others follow on. Never waits.
  uint64_t submit(int file, uint64_t offset, uint8_t* address, uint64_t length, const std::vector<PagePart>& pages);
  // Asks for bytes that lie anywhere in one file, each by one request; one ticket for all, which are not checked.
  uint64_t gather(int file, const std::vector<Scattered>& parts);
  // Spins briefly, then sleeps until the page is published or the time is over; pending means the latter.
  ReadOutcome wait(uint64_t ticket, double timeout_s);
  bool is_published(uint64_t ticket);
  // Drops what no lane has begun and waits for what is in flight; afterwards no lane writes to the arena.
  void cancel();

  bool direct(int file) const { return files_[file].direct; }
  ReaderStats stats();
  // While recording, every request and checksum leaves an event; taking them empties the list.
  void record(bool on);
  std::vector<ReaderEvent> take_events();

 private:
  struct Page {
    uint8_t* address;
    uint64_t file_offset, length, checksum;
    bool verify;
    int requests_left;
    ReadOutcome result;   // of the requests that are over
    ReadOutcome outcome;  // published: pending until the last request is over
  };
  struct Request {
    int file;
    uint64_t offset;
    uint8_t* address;
    uint64_t length;
    uint64_t first_ticket, last_ticket;
  };

  void lane(int index);
  ReadOutcome read(const Request& request);
  bool finish(int lane, const Request& request, const ReadOutcome& outcome, std::unique_lock<std::mutex>& lock);
  void wake_lanes(size_t requests);
  Page& page(uint64_t ticket) { return pages_[ticket - first_live_]; }
  void drop_settled_pages();

  std::vector<platform::File> files_;
  size_t request_bytes_;
  Checksum checksum_;

  std::mutex mutex_;
  std::condition_variable work_, published_;
  std::deque<Request> queue_;
  std::deque<Page> pages_;
  uint64_t first_live_ = 1;
  std::atomic<uint64_t> published_count_{0};
  int in_flight_ = 0;  // requests that a lane holds, checksums included
  int reading_ = 0;    // requests inside the operating system
  double busy_since_ = 0;
  ReaderStats stats_{};
  bool stopping_ = false;
  bool recording_ = false;
  std::vector<ReaderEvent> events_;
  std::vector<std::thread> lanes_;
};

}  // namespace estream
