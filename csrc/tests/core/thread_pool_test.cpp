// The thread pool.
#include "core/thread_pool.h"

#include <atomic>
#include <chrono>

#include "tests/harness.h"

namespace estream::tests {

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

}  // namespace estream::tests
