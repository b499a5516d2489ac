// The compute threads, with work stealing. Each thread begins with its own share of the task indices. Runs of equally many
// tasks have equal shares, so a thread's caches may still hold what it computed before. A thread that is done takes tasks of
// the others, one at a time, so a thread that is delayed (by a reader lane on the same core) delays only the task that it has
// begun. Which thread computes a task never changes the result.
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

  // Calls task(index, thread) for every index below count. Returns when all tasks are done. Tasks must not throw. One caller at
  // a time.
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

  // High half: the number of the run (generation). Low half: whether it is open, and how many workers are inside it.
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
