// Control files: what a write to one of them does. `checkpoint` and `flush` run here.
// Called by fs/pseudo_tree.
#pragma once

#include <kvslot/mutex.h>
#include <kvslot/types.h>
#include <kvslot/volume.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "fs/pseudo_tree.h"

namespace kvslot {

enum class ControlAction : std::uint8_t { kCheckpoint = 0, kFlush = 1 };
inline constexpr std::size_t kControlActionCount = 2;

// Runs actions on a thread of its own, one after the other, so that the writer never waits. The
// thread is made by the first request.
// Threads: thread-safe.
class ControlRunner {
 public:
  explicit ControlRunner(Volume& volume) : volume_(volume) {}
  ~ControlRunner();  // waits for the action under way, drops the others
  ControlRunner(const ControlRunner&) = delete;
  ControlRunner& operator=(const ControlRunner&) = delete;

  // Queues the action; a request while one waits joins it.
  void request(ControlAction action);

  // The header and one line: state (never, waiting, running, done, failed), when it started, how
  // long it took, why it failed.
  [[nodiscard]] std::string text(ControlAction action) const;

 private:
  enum class State : std::uint8_t { kNever, kRunning, kDone, kFailed };
  struct Job {
    bool is_requested = false;
    State state = State::kNever;
    TimestampNs started_ns = 0;
    std::int64_t duration_us = 0;
    Error error{.code = Errc::kIo, .os_errno = 0, .step = ""};  // of kFailed
  };

  void work();
  void run_one(std::size_t index) REQUIRES(mutex_);
  [[nodiscard]] bool is_any_requested() const REQUIRES(mutex_);

  Volume& volume_;
  mutable Mutex mutex_;
  Condition changed_;
  std::array<Job, kControlActionCount> jobs_ GUARDED_BY(mutex_);
  bool is_closing_ GUARDED_BY(mutex_) = false;
  std::thread thread_ GUARDED_BY(mutex_);
};

// A control file: reads the text as it was at open; a write gives its one word to `act`.
std::unique_ptr<PseudoHandle> open_control(std::string text,
                                           std::function<Result<void>(std::string_view word)> act);
// The same for a file that runs an action when 1 is written.
std::unique_ptr<PseudoHandle> open_control(ControlRunner& runner, ControlAction action);

}  // namespace kvslot
