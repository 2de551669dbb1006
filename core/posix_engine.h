// Carries out batches with preadv and pwritev: on the calling thread, and for larger batches on a
// bounded set of helper threads as well. The engine where io_uring is not to be had.
#pragma once

#include <kvslot/mutex.h>

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/io_engine.h"
#include "core/transfer.h"

namespace kvslot {

// As many transfers of one batch at a time as 32 threads with one transfer each would have.
inline constexpr std::size_t kPosixHelpersMax = 31;

// Attempts until the transfer is done, on the calling thread, which waits for the device.
void run_to_end(int fd, Transfer& transfer, IoCounters& counters);

// Threads: thread-safe.
class PosixEngine final : public IoEngine {
 public:
  PosixEngine(std::string detail, IoCounters& counters)
      : detail_(std::move(detail)), counters_(counters) {}
  ~PosixEngine() override;
  PosixEngine(const PosixEngine&) = delete;
  PosixEngine& operator=(const PosixEngine&) = delete;

  void run(int fd, std::span<IoRequest> requests) override;
  void retire_threads() override;
  [[nodiscard]] const char* name() const override { return "posix"; }
  [[nodiscard]] std::string detail() const override { return detail_; }

 private:
  struct Batch;
  void run_shared(int fd, std::span<IoRequest> requests);
  void start_helpers() REQUIRES(mutex_);
  void help();
  void work_on(Batch& batch);

  const std::string detail_;
  IoCounters& counters_;

  Mutex mutex_;
  Condition batch_arrived_;
  Condition helper_left_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<pid_t> helper_ids_ GUARDED_BY(mutex_);
  std::deque<Batch*> open_batches_ GUARDED_BY(mutex_);  // those with requests nobody has taken
  std::vector<std::thread> helpers_ GUARDED_BY(mutex_);
};

}  // namespace kvslot
