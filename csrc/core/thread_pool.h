// The compute threads. Each begins with its own share of the task indices, the same in every run of as many, whose results
// its caches may still hold; then it takes what others have not begun, one at a time, so that a thread held up elsewhere
// (a reader lane on the same core) only delays the task it has begun. Which thread computes a task never changes its result.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace estream {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller of run is one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(index, thread) for every index below count; returns when all are done. Tasks must not throw.
  template <typename Task>
  void run(int count, Task&& task) {
    const auto call = [](void* context, int index, int thread) {
      (*static_cast<std::remove_reference_t<Task>*>(context))(index, thread);
    };
    run_erased(count, call, &task);
  }

 private:
  using Call = void (*)(void*, int, int);
  void run_erased(int count, Call call, void* context);
  void worker(int thread);
  void stop();
  void take_tasks(int thread);
  bool join(uint32_t& generation);
  bool has_news(uint32_t generation) const;

  // Generation in the high half; in the low half an open flag and the number of workers inside the current run.
  std::atomic<uint64_t> state_{0};
  Call call_ = nullptr;
  void* context_ = nullptr;
  int count_ = 0;
  struct alignas(64) Share {
    std::atomic<int> next{0};
    int end = 0;
  };
  std::vector<Share> shares_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace estream
