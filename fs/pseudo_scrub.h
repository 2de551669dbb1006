// The thread behind `.kvslot/scrub`: passes of the scrub at a bounded rate, and how they went.
// Called by fs/pseudo_tree; the step after is kvslot/scrub.h.
#pragma once

#include <kvslot/error.h>
#include <kvslot/mutex.h>
#include <kvslot/scrub.h>
#include <kvslot/types.h>
#include <kvslot/volume.h>

#include <cstdint>
#include <string>
#include <thread>

namespace kvslot {

// Threads: thread-safe. It has a thread only while a pass is under way.
class ScrubRunner {
 public:
  // bytes_per_second 0: as fast as the device reads.
  ScrubRunner(Volume& volume, std::uint64_t bytes_per_second)
      : volume_(volume), bytes_per_second_(bytes_per_second) {}
  ~ScrubRunner() { close(); }
  ScrubRunner(const ScrubRunner&) = delete;
  ScrubRunner& operator=(const ScrubRunner&) = delete;

  // Begins a pass. kBusy: one is under way, or the mount ends.
  Result<void> start();
  // Ends the pass under way after the step it is in, without waiting for that.
  void stop();
  // The same, and waits; later starts fail.
  void close();

  // The header and one line: state (never, running, done, stopped, failed), when it started, how
  // long it took, what was verified of how much, what was found, why it failed.
  [[nodiscard]] std::string text() const;

 private:
  enum class State : std::uint8_t { kNever, kRunning, kDone, kStopped, kFailed };

  void work();
  // Lets go of the lock while a step runs.
  State run_pass() REQUIRES(mutex_);

  Volume& volume_;
  const std::uint64_t bytes_per_second_;
  mutable Mutex mutex_;
  Condition changed_;
  State state_ GUARDED_BY(mutex_) = State::kNever;
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  bool is_closed_ GUARDED_BY(mutex_) = false;
  TimestampNs started_ns_ GUARDED_BY(mutex_) = 0;
  std::int64_t duration_us_ GUARDED_BY(mutex_) = 0;
  std::uint64_t live_bytes_ GUARDED_BY(mutex_) = 0;  // when it started, in whole slots
  ScrubProgress progress_ GUARDED_BY(mutex_);
  Error error_ GUARDED_BY(mutex_){.code = Errc::kIo, .os_errno = 0, .step = ""};  // of kFailed
  std::thread thread_ GUARDED_BY(mutex_);
};

}  // namespace kvslot
