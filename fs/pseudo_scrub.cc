// Steps of a pass, with rests between them so that the rate is kept. See pseudo_scrub.h.
#include "fs/pseudo_scrub.h"

#include <fmt/core.h>
#include <kvslot/clock.h>

#include <cerrno>
#include <chrono>
#include <string_view>
#include <system_error>
#include <utility>

#include "fs/text.h"

namespace kvslot {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t live_bytes_of(Volume& volume) {
  for (const Stat& stat : volume.inspector().stats())
    if (std::string_view(stat.name) == "bytes_live") return stat.value;
  return 0;
}

}  // namespace

Result<void> ScrubRunner::start() {
  const std::uint64_t live_bytes = live_bytes_of(volume_);
  MutexLock lock(mutex_);
  if (is_closed_) return fail(Errc::kBusy, "scrub: the store is closing", EBUSY);
  if (state_ == State::kRunning) return fail(Errc::kBusy, "scrub: one is under way", EBUSY);
  if (thread_.joinable()) thread_.join();  // it has left the lock for the last time
  state_ = State::kRunning;
  is_stopping_ = false;
  started_ns_ = wall_clock_ns();
  live_bytes_ = live_bytes;
  progress_ = {};
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {
    state_ = State::kFailed;
    error_ = {.code = Errc::kIo, .os_errno = EAGAIN, .step = "no thread is to be had"};
    return std::unexpected(error_);
  }
  return {};
}

void ScrubRunner::stop() {
  const MutexLock lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
}

void ScrubRunner::close() {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    is_closed_ = true;
    is_stopping_ = true;
    changed_.notify_all();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void ScrubRunner::work() {
  const MutexLock lock(mutex_);
  const auto start = Clock::now();
  const State outcome = run_pass();
  duration_us_ =
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
  state_ = outcome;
}

ScrubRunner::State ScrubRunner::run_pass() {
  Scrub scrub(volume_);
  const auto start = Clock::now();
  while (!is_stopping_) {
    mutex_.unlock();
    const Result<bool> more = scrub.step();
    mutex_.lock();
    progress_ = scrub.progress();
    if (!more) {
      error_ = more.error();
      return State::kFailed;
    }
    if (!*more) return State::kDone;
    if (bytes_per_second_ == 0) continue;
    const auto due =
        start + std::chrono::microseconds(progress_.bytes * 1'000'000 / bytes_per_second_);
    while (!is_stopping_ && Clock::now() < due) changed_.wait_until(mutex_, due);
  }
  return State::kStopped;
}

std::string ScrubRunner::text() const {
  const MutexLock lock(mutex_);
  const char* state = "never";
  if (state_ == State::kRunning) state = "running";
  if (state_ == State::kDone) state = "done";
  if (state_ == State::kStopped) state = "stopped";
  if (state_ == State::kFailed) state = "failed";
  const bool has_started = state_ != State::kNever;
  const bool has_ended = has_started && state_ != State::kRunning;
  return fmt::format(
      "#state\tstarted_s\tduration_us\tfiles\textents\tbytes\tlive_bytes\tcorrupt\tunreadable\t"
      "result\n{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n",
      state, has_started ? format_timestamp(started_ns_) : "-",
      has_ended ? fmt::format("{}", duration_us_) : "-", progress_.files, progress_.extents,
      progress_.bytes, live_bytes_, progress_.corrupt, progress_.unreadable,
      state_ == State::kFailed ? fmt::format("{} ({})", error_.step, errno_name(to_errno(error_)))
                               : "-");
}

}  // namespace kvslot
