// The thread behind the control files. See pseudo_control.h; the step after is Volume::checkpoint
// and Volume::flush.
#include "fs/pseudo_control.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "fs/text.h"

namespace kvslot {
namespace {

class ControlHandle : public PseudoHandle {
 public:
  ControlHandle(std::string text, std::function<Result<void>(std::string_view)> act)
      : text_(std::move(text)), act_(std::move(act)) {}

  Result<std::string> read(std::uint64_t offset_bytes, std::size_t size_bytes) override {
    return offset_bytes >= text_.size() ? std::string() : text_.substr(offset_bytes, size_bytes);
  }

  Result<std::size_t> write(std::string_view bytes) override {
    const std::string_view word = bytes.substr(0, bytes.size() - (bytes.ends_with('\n') ? 1 : 0));
    if (auto done = act_(word); !done) return fail(done);
    return bytes.size();
  }

 private:
  const std::string text_;
  const std::function<Result<void>(std::string_view)> act_;
};

}  // namespace

ControlRunner::~ControlRunner() {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    is_closing_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
}

void ControlRunner::request(ControlAction action) {
  const MutexLock lock(mutex_);
  Job& job = jobs_[std::to_underlying(action)];
  job.is_requested = true;
  try {
    if (!thread_.joinable() && !is_closing_) thread_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {
    job = {.is_requested = false, .state = State::kFailed, .started_ns = wall_clock_ns()};
    job.error = {.code = Errc::kIo, .os_errno = EAGAIN, .step = "no thread is to be had"};
  }
  changed_.notify_all();
}

std::string ControlRunner::text(ControlAction action) const {
  const MutexLock lock(mutex_);
  const Job& job = jobs_[std::to_underlying(action)];
  const char* state = "never";
  if (job.state == State::kRunning) state = "running";
  if (job.state == State::kDone) state = "done";
  if (job.state == State::kFailed) state = "failed";
  if (job.is_requested && job.state != State::kRunning) state = "waiting";
  const bool has_started = job.state != State::kNever;
  const bool has_ended = job.state == State::kDone || job.state == State::kFailed;
  return fmt::format("#state\tstarted_s\tduration_us\tresult\n{}\t{}\t{}\t{}\n", state,
                     has_started ? format_timestamp(job.started_ns) : "-",
                     has_ended ? fmt::format("{}", job.duration_us) : "-",
                     job.state == State::kFailed
                         ? fmt::format("{} ({})", job.error.step, errno_name(to_errno(job.error)))
                         : "-");
}

bool ControlRunner::is_any_requested() const {
  return std::ranges::any_of(jobs_, [](const Job& job) { return job.is_requested; });
}

void ControlRunner::work() {
  const MutexLock lock(mutex_);
  while (!is_closing_) {
    if (!is_any_requested()) {
      changed_.wait(mutex_);
      continue;
    }
    for (std::size_t i = 0; i < kControlActionCount && !is_closing_; ++i) {
      if (jobs_[i].is_requested) run_one(i);
    }
  }
}

// Lets go of the lock while the action runs.
void ControlRunner::run_one(std::size_t index) {
  Job& job = jobs_[index];
  job.is_requested = false;
  job.state = State::kRunning;
  job.started_ns = wall_clock_ns();
  mutex_.unlock();
  const auto start = std::chrono::steady_clock::now();
  const Result<void> result = index == std::to_underlying(ControlAction::kCheckpoint)
                                  ? volume_.checkpoint()
                                  : volume_.flush();
  const auto duration = std::chrono::steady_clock::now() - start;
  mutex_.lock();
  job.duration_us = std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
  job.state = result ? State::kDone : State::kFailed;
  if (!result) job.error = result.error();
}

std::unique_ptr<PseudoHandle> open_control(std::string text,
                                           std::function<Result<void>(std::string_view word)> act) {
  return std::make_unique<ControlHandle>(std::move(text), std::move(act));
}

std::unique_ptr<PseudoHandle> open_control(ControlRunner& runner, ControlAction action) {
  return open_control(runner.text(action), [&runner, action](std::string_view word) {
    if (word != "1") return Result<void>(fail(Errc::kInvalid, "control file: write 1 to run"));
    runner.request(action);
    return Result<void>();
  });
}

}  // namespace kvslot
