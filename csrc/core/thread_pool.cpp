#include "core/thread_pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace estream {

namespace {

constexpr uint64_t kOpen = 1u << 31;
constexpr auto kSpin = std::chrono::microseconds(50);

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until done() is true or the spin time is over. Returns whether done() was true.
template <typename Done>
bool spin(Done&& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; i++) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads) : shares_(threads) {
  try {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { worker(i); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& thread : workers_) thread.join();
}

void ThreadPool::run_erased(int count, Call call, void* context) {
  if (count <= 1 || workers_.empty()) {
    for (int i = 0; i < count; i++) call(context, i, 0);
    return;
  }
  call_ = call;
  context_ = context;
  count_ = count;
  for (int t = 0; t < threads(); t++) {
    shares_[t].next.store(static_cast<int>(int64_t{count} * t / threads()), std::memory_order_relaxed);
    shares_[t].end = static_cast<int>(int64_t{count} * (t + 1) / threads());
  }
  const uint64_t generation = (state_.load() >> 32) + 1;
  state_.store(generation << 32 | kOpen);
  if (sleepers_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  take_tasks(0);
  // The run is closed. A worker that has not joined it finds no task, so nobody waits for it.
  state_.fetch_and(~kOpen);
  while ((state_.load(std::memory_order_acquire) & 0xffff) != 0)
    if (!spin([&] { return (state_.load(std::memory_order_acquire) & 0xffff) == 0; })) std::this_thread::yield();
}

void ThreadPool::take_tasks(int thread) {
  for (int t = 0; t < threads(); t++) {
    Share& share = shares_[(thread + t) % threads()];
    // Reading first spares other threads' cache lines where there is nothing left to take.
    while (share.next.load(std::memory_order_relaxed) < share.end) {
      const int i = share.next.fetch_add(1, std::memory_order_relaxed);
      if (i < share.end) call_(context_, i, thread);
    }
  }
}

bool ThreadPool::has_news(uint32_t generation) const {
  const uint64_t state = state_.load();
  return (state >> 32) != generation && (state & kOpen);
}

bool ThreadPool::join(uint32_t& generation) {
  uint64_t state = state_.load();
  while ((state >> 32) != generation && (state & kOpen))
    if (state_.compare_exchange_weak(state, state + 1)) {
      generation = static_cast<uint32_t>(state >> 32);
      return true;
    }
  return false;
}

void ThreadPool::worker(int thread) {
  uint32_t generation = 0;
  while (!stopping_.load()) {
    if (join(generation)) {
      take_tasks(thread);
      state_.fetch_sub(1, std::memory_order_release);
    } else if (!spin([&] { return has_news(generation) || stopping_.load(std::memory_order_relaxed); })) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return has_news(generation) || stopping_.load(); });
      sleepers_.fetch_sub(1);
    }
  }
}

}  // namespace estream
