// Carries out batches with io_uring: each calling thread has a ring of its own, made when its
// first batch comes; a single request is a plain system call, which is cheaper. A caller that may
// leave takes a core/leavable_ring for the call.
#pragma once

#include <kvslot/mutex.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/io_engine.h"
#include "core/leavable_ring.h"
#include "core/posix_engine.h"
#include "core/uring_ring.h"

namespace kvslot {

inline constexpr unsigned kQueueDepthMax = 4096;  // of one ring

// Threads: thread-safe. A thread may end before the engine, or the engine before the thread: a
// ring goes with whichever ends first.
class UringEngine final : public IoEngine {
 public:
  //   errors   as UringRing::open
  [[nodiscard]] static Result<std::unique_ptr<UringEngine>> open(unsigned queue_depth_max,
                                                                 IoCounters& counters);
  ~UringEngine() override;
  UringEngine(const UringEngine&) = delete;
  UringEngine& operator=(const UringEngine&) = delete;

  void run(int fd, std::span<IoRequest> requests) override;
  [[nodiscard]] bool run_or_leave(int fd, std::span<IoRequest> requests,
                                  const std::function<bool()>& is_over,
                                  std::unique_ptr<LateRequests>& late) override;
  void retire_threads() override { posix_.retire_threads(); }
  [[nodiscard]] const char* name() const override { return "io_uring"; }
  [[nodiscard]] std::string detail() const override { return detail_; }

  [[nodiscard]] std::size_t ring_count() const;  // threads with a ring now

 private:
  UringEngine(UringOptions options, std::string detail, IoCounters& counters)
      : options_(options), detail_(std::move(detail)), counters_(counters), posix_("", counters) {}
  UringRing* ring_of_this_thread();
  std::unique_ptr<LeavableRing> take_leavable_ring();

  const UringOptions options_;
  const std::string detail_;
  IoCounters& counters_;
  std::atomic<bool> can_leave_ = true;  // until a file turns out not to be of the kind
  PosixEngine posix_;                   // for single requests, and for threads that get no ring

  mutable Mutex mutex_;
  std::vector<std::weak_ptr<UringRing>> rings_ GUARDED_BY(mutex_);
  // As many as there were callers at once: any thread can use any of them.
  std::vector<std::unique_ptr<LeavableRing>> idle_leavable_rings_ GUARDED_BY(mutex_);
};

}  // namespace kvslot
