// Threads that may wait for the device, so that the threads which serve requests never do.
// Called by fs/filesystem (reads), fs/publisher (completing windows) and fs/operations.
#pragma once

#include <kvslot/mutex.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

namespace kvslot {

struct ReaderPoolOptions {
  std::size_t threads_max = 16;
  // How many callers of run() may do the work themselves; 0 where a caller must never wait.
  std::size_t inline_max = 0;
};

// Threads: thread-safe. The queue is bounded by the requests that the kernel lets wait.
class ReaderPool {
 public:
  using Work = std::function<void()>;

  explicit ReaderPool(const ReaderPoolOptions& options);
  ~ReaderPool();  // as close()
  ReaderPool(const ReaderPool&) = delete;
  ReaderPool& operator=(const ReaderPool&) = delete;

  // Runs the work on one of the pool's threads, soon; here where there is none, and none to be had.
  void post(Work work);
  // The same, or at once on the caller's thread where options and load allow it. Call it under no
  // lock and with nothing left to do.
  void run(Work work);
  // Finishes what is queued and ends the threads; later work runs on its caller's thread.
  void close();

  [[nodiscard]] std::size_t queued() const;

 private:
  void serve();

  const ReaderPoolOptions options_;
  mutable Mutex mutex_;
  Condition wake_;
  std::deque<Work> queue_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
  std::size_t idle_ GUARDED_BY(mutex_) = 0;
  std::size_t inline_ GUARDED_BY(mutex_) = 0;
  bool closing_ GUARDED_BY(mutex_) = false;
};

}  // namespace kvslot
