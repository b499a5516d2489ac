#include "core/reader.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace estream {

namespace {

using Clock = std::chrono::steady_clock;

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

constexpr double kSpinSeconds = 50e-6;
constexpr uint64_t kDirectAlignment = platform::kDirectAlignment;
// The reader keeps this many pages after they were published, so that a caller may wait for a page twice.
constexpr size_t kKeptPages = 16384;

}  // namespace

Reader::Reader(const std::vector<std::string>& paths, int lanes, size_t request_bytes, bool want_direct, Checksum checksum)
    : request_bytes_(request_bytes), checksum_(checksum) {
  try {
    for (const std::string& path : paths) files_.push_back(platform::open_for_reading(path, want_direct));
    for (int i = 0; i < lanes; i++) lanes_.emplace_back([this, i] { lane(i); });
  } catch (...) {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (auto& thread : lanes_) thread.join();
    for (auto file : files_) platform::close(file);
    throw;
  }
}

Reader::~Reader() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    queue_.clear();
  }
  work_.notify_all();
  for (auto& thread : lanes_) thread.join();
  for (auto file : files_) platform::close(file);
}

uint64_t Reader::submit(int file, uint64_t offset, uint8_t* address, uint64_t length, const std::vector<PagePart>& pages) {
  std::lock_guard lock(mutex_);
  drop_settled_pages();
  const uint64_t first = first_live_ + pages_.size();
  for (const PagePart& part : pages)
    pages_.push_back({address + part.begin,
                      offset + part.begin,
                      part.length,
                      part.checksum,
                      part.verify,
                      false,
                      0,
                      {ReadState::ready, 0, offset + part.begin},
                      {ReadState::pending, 0, offset + part.begin}});
  size_t covered = 0, asked = 0;
  for (uint64_t begin = 0; begin < length; begin += request_bytes_) {
    const uint64_t end = std::min<uint64_t>(begin + request_bytes_, length);
    while (covered < pages.size() && pages[covered].begin + pages[covered].length <= begin) covered++;
    size_t last = covered;
    while (last < pages.size() && pages[last].begin < end) page(first + last++).requests_left++;
    // Bytes between two pages are padding. A request for padding alone is left out.
    if (last == covered) continue;
    queue_.push_back({file, offset + begin, address + begin, end - begin, first + covered, first + last - 1});
    asked++;
  }
  wake_lanes(asked);
  return first;
}

uint64_t Reader::gather(int file, const std::vector<Scattered>& parts) {
  std::lock_guard lock(mutex_);
  drop_settled_pages();
  const uint64_t ticket = first_live_ + pages_.size(), offset = parts.front().offset;
  const int requests = static_cast<int>(parts.size());
  pages_.push_back(
      {nullptr, offset, 0, 0, false, false, requests, {ReadState::ready, 0, offset}, {ReadState::pending, 0, offset}});
  for (const Scattered& part : parts) queue_.push_back({file, part.offset, part.address, part.length, ticket, ticket});
  wake_lanes(parts.size());
  return ticket;
}

void Reader::wake_lanes(size_t requests) {
  // A lane that wakes for nothing takes time from computing, so no more lanes wake than there are requests.
  for (size_t i = std::min(requests, lanes_.size()); i > 0; i--) work_.notify_one();
}

void Reader::drop_settled_pages() {
  while (pages_.size() > kKeptPages && pages_.front().outcome.state != ReadState::pending) {
    pages_.pop_front();
    first_live_++;
  }
}

ReadOutcome Reader::wait(uint64_t ticket, double timeout_s) {
  std::unique_lock lock(mutex_);
  if (ticket < first_live_ || ticket >= first_live_ + pages_.size()) throw std::out_of_range("no such read");
  const double begin = now();
  while (page(ticket).outcome.state == ReadState::pending && now() - begin < kSpinSeconds) {
    const uint64_t seen = published_count_.load(std::memory_order_acquire);
    lock.unlock();
    while (published_count_.load(std::memory_order_acquire) == seen && now() - begin < kSpinSeconds) {
    }
    lock.lock();
  }
  published_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                      [&] { return page(ticket).outcome.state != ReadState::pending; });
  return page(ticket).outcome;
}

bool Reader::is_published(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  if (ticket >= first_live_ + pages_.size()) throw std::out_of_range("no such read");
  return ticket < first_live_ || page(ticket).outcome.state != ReadState::pending;
}

bool Reader::is_withdrawn(const Request& request) {
  for (uint64_t ticket = request.first_ticket; ticket <= request.last_ticket; ticket++)
    if (!page(ticket).withdrawn) return false;
  return true;
}

uint64_t Reader::withdraw(const std::vector<uint64_t>& tickets) {
  std::lock_guard lock(mutex_);
  for (const uint64_t ticket : tickets)
    if (ticket >= first_live_ && ticket < first_live_ + pages_.size()) page(ticket).withdrawn = true;
  uint64_t dropped = 0;
  bool published = false;
  std::erase_if(queue_, [&](const Request& request) {
    if (!is_withdrawn(request)) return false;
    for (uint64_t ticket = request.first_ticket; ticket <= request.last_ticket; ticket++) {
      Page& shared = page(ticket);
      shared.result.state = ReadState::cancelled;
      if (--shared.requests_left > 0) continue;
      shared.outcome = shared.result;
      published = true;
    }
    dropped += request.length;
    return true;
  });
  if (!published) return dropped;
  published_count_.fetch_add(1, std::memory_order_release);
  published_.notify_all();
  return dropped;
}

void Reader::cancel() {
  std::unique_lock lock(mutex_);
  queue_.clear();
  published_.wait(lock, [&] { return in_flight_ == 0; });
  for (Page& p : pages_)
    if (p.outcome.state == ReadState::pending) p.outcome.state = ReadState::cancelled;
  published_count_.fetch_add(1, std::memory_order_release);
  published_.notify_all();
}

ReaderStats Reader::stats() {
  std::lock_guard lock(mutex_);
  ReaderStats result = stats_;
  if (reading_ > 0) result.busy_s += now() - busy_since_;
  return result;
}

void Reader::record(bool on) {
  std::lock_guard lock(mutex_);
  recording_ = on;
}

std::vector<ReaderEvent> Reader::take_events() {
  std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

void Reader::lane(int index) {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const Request request = queue_.front();
    queue_.pop_front();
    in_flight_++;
    if (reading_++ == 0) busy_since_ = now();
    lock.unlock();
    const double begin = now();
    const ReadOutcome outcome = read(request);
    const double end = now();
    lock.lock();
    if (recording_) events_.push_back({index, false, request.file, request.offset, request.length, begin, end});
    if (--reading_ == 0) stats_.busy_s += now() - busy_since_;
    const bool published = finish(index, request, outcome, lock);
    in_flight_--;
    // Waiting threads wake only when a page was published, or for cancel() when the last request has ended.
    if (!published && in_flight_ > 0) continue;
    published_count_.fetch_add(1, std::memory_order_release);
    published_.notify_all();
  }
}

ReadOutcome Reader::read(const Request& request) {
  const platform::File file = files_[request.file];
  uint64_t done = 0;
  while (done < request.length) {
    const int64_t n = platform::read_at(file, request.address + done, request.length - done, request.offset + done);
    if (n < 0) return {ReadState::failed_io, static_cast<int>(-n), request.offset + done};
    if (n == 0) return {ReadState::failed_short, 0, request.offset + done};
    done += n;
    // A direct read must resume at an aligned offset, so it reads the bytes after the last such offset again.
    if (file.direct && done < request.length) {
      const uint64_t aligned = done / kDirectAlignment * kDirectAlignment;
      if (aligned == done - n && n < static_cast<int64_t>(kDirectAlignment))
        return {ReadState::failed_short, 0, request.offset + done};
      done = aligned;
    }
  }
  if (!file.direct) platform::forget(file, request.offset, request.length);
  return {ReadState::ready, 0, 0};
}

// Returns whether a page was published. The caller holds the lock; it is released while a checksum is computed. No other lane
// uses the page by then.
bool Reader::finish(int lane, const Request& request, const ReadOutcome& outcome, std::unique_lock<std::mutex>& lock) {
  bool published = false;
  stats_.requests++;
  if (outcome.state == ReadState::ready) stats_.bytes += request.length;
  for (uint64_t ticket = request.first_ticket; ticket <= request.last_ticket; ticket++) {
    Page& shared = page(ticket);
    if (outcome.state != ReadState::ready && shared.result.state == ReadState::ready) shared.result = outcome;
    // A failed page too is published only when no lane writes to its memory any more.
    if (--shared.requests_left > 0) continue;
    ReadOutcome result = shared.result;
    if (result.state == ReadState::ready && shared.verify) {
      const Page copy = shared;
      lock.unlock();
      const double begin = now();
      const bool right = checksum_(copy.address, copy.length) == copy.checksum;
      const double end = now();
      lock.lock();
      stats_.checksum_s += end - begin;
      if (recording_) events_.push_back({lane, true, request.file, copy.file_offset, copy.length, begin, end});
      if (!right) result.state = ReadState::failed_checksum;
    }
    page(ticket).outcome = result;
    published = true;
  }
  return published;
}

}  // namespace estream
