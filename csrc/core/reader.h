// Reader lanes: threads that each keep one positioned read in flight, from package files into the arena.
//
// Callers ask for runs: adjacent bytes of one file that go to adjacent addresses. The reader divides a run into requests of a
// fixed size, which any lane may take in any order. It publishes each page of the run on its own, when all bytes of the page
// have arrived and its checksum is right. It publishes a page that failed with the reason, once no lane writes to its memory
// any more.
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

// Bytes of a file, and the address that they go to.
struct Scattered {
  uint64_t offset;
  uint8_t* address;
  uint64_t length;
};

enum class ReadState { pending, ready, failed_io, failed_short, failed_checksum, cancelled };

struct ReadOutcome {
  ReadState state;
  int error;             // the system's error number, for failed_io
  uint64_t file_offset;  // where the read failed
};

// One request or one checksum, in seconds of the steady clock. For timelines.
struct ReaderEvent {
  int lane;
  bool checksum;  // a checksum, not a request
  int file;
  uint64_t offset, bytes;
  double begin_s, end_s;
};

struct ReaderStats {
  uint64_t bytes;
  uint64_t requests;
  double busy_s;      // time during which at least one read was in flight
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

  // Asks for one run; where reads are direct, its address, offset and length must be multiples of 4096. Returns the ticket of
  // its first page; the tickets of the others follow. Does not wait for reads.
  uint64_t submit(int file, uint64_t offset, uint8_t* address, uint64_t length, const std::vector<PagePart>& pages);
  // Asks for parts that lie anywhere in one file, with one request for each. Returns one ticket for all of them. Their bytes
  // have no checksum.
  uint64_t gather(int file, const std::vector<Scattered>& parts);
  // Spins briefly, then sleeps until the page is published or the time is over. In the latter case the page is pending.
  ReadOutcome wait(uint64_t ticket, double timeout_s);
  bool is_published(uint64_t ticket);
  // Drops the requests that no lane has begun and that serve none but these pages; returns their bytes. A page that lost one is
  // published as cancelled when no lane writes to its memory any more. Does not wait. Unknown tickets are those of old pages.
  uint64_t withdraw(const std::vector<uint64_t>& tickets);
  // Drops the requests that no lane has begun and waits for those in flight. Afterwards no lane writes to the arena.
  void cancel();

  int files() const { return static_cast<int>(files_.size()); }
  bool direct(int file) const { return files_[file].direct; }
  ReaderStats stats();
  // While recording is on, every request and every checksum appends an event. take_events empties the list.
  void record(bool on);
  std::vector<ReaderEvent> take_events();

 private:
  struct Page {
    uint8_t* address;
    uint64_t file_offset, length, checksum;
    bool verify;
    bool withdrawn;
    int requests_left;
    ReadOutcome result;   // of the requests that have ended
    ReadOutcome outcome;  // the published one: pending until the last request has ended
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
  bool is_withdrawn(const Request& request);
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
