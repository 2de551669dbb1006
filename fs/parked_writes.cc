// Who waits, for what, and how long. See parked_writes.h.
#include "fs/parked_writes.h"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

namespace kvslot {

namespace {

constexpr std::size_t kKeptBytesMin = 256 * kMiB;  // of the bound on what is kept
constexpr std::size_t kKeptPerStaging = 4;         // the bound, in sizes of the staging memory

// Of memory (kBusy) or of slots (kNoSpace).
bool is_short_of(const Result<void>& result, Errc what) {
  return !result && result.error().code == what;
}

bool holds_removed_files(Volume& volume) {
  for (const Stat& stat : volume.inspector().stats()) {
    if (std::string_view(stat.name) == "nodes_unlinked") return stat.value > 0;
  }
  return false;
}

}  // namespace

std::optional<ParkedWrites::Clock::time_point> ParkedWrites::slots_due() const {
  const auto due = Clock::time_point(Clock::duration(last_parting_)) + parting_wait_.load();
  if (Clock::now() >= due || !holds_removed_files(volume_)) return std::nullopt;
  return due;
}

bool ParkedWrites::is_worth_waiting(const Result<void>& result, std::uint64_t patience) const {
  if (is_short_of(result, Errc::kBusy)) return true;
  return is_short_of(result, Errc::kNoSpace) &&
         (publisher_.ended_flights() < patience || slots_due());
}

void ParkedWrites::park(ParkedWrite write) {
  {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(write));
    ++count_;
  }
  if (publisher_.in_flight() == 0) pool_.post([this] { serve(); });
}

void ParkedWrites::make_room(std::size_t bytes) {
  const std::size_t bytes_max =
      std::max(kKeptBytesMin, kKeptPerStaging * volume_.buffers().size_bytes());
  const MutexLock lock(mutex_);
  while (kept_bytes_ + bytes > bytes_max && kept_bytes_ > 0 && !is_ending_) changed_.wait(mutex_);
  kept_bytes_ += bytes;
}

void ParkedWrites::end_waiting() {
  const MutexLock lock(mutex_);
  is_ending_ = true;
  changed_.notify_all();
}

void ParkedWrites::wake() {
  if (count_ == 0) return;
  {
    const MutexLock lock(mutex_);
    ++wakes_;
    changed_.notify_all();
  }
  pool_.post([this] { serve(); });
}

ParkedWrites::Outcome ParkedWrites::try_again(const ParkedWrite& write) {
  // Asked before it is tried. Later commits are not waited for.
  const auto due = slots_due();
  const bool may_gain_slots =
      publisher_.in_flight() > 0 && publisher_.ended_flights() < write.patience;
  auto result = write.attempt(LiveContent::Memory::kPoolOnly);
  if (is_short_of(result, Errc::kBusy)) {
    if (!publisher_.can_spill()) {
      return {.result =
                  fail(Errc::kIo, "write: memory is used up and the device takes nothing", EIO)};
    }
    if (publisher_.spill_anything()) return {.result = {}, .waits = true};
    result = write.attempt(LiveContent::Memory::kPoolOrHeap);
  }
  if (!is_short_of(result, Errc::kNoSpace)) return {.result = std::move(result)};
  return {.result = std::move(result), .waits = due || may_gain_slots, .due = due};
}

void ParkedWrites::serve() {
  MutexLock lock(mutex_);
  if (is_serving_) return;
  is_serving_ = true;
  while (!queue_.empty()) {
    ParkedWrite write = std::move(queue_.front());
    queue_.pop_front();
    const std::uint64_t wakes = wakes_;
    lock.unlock();
    Outcome outcome = try_again(write);
    if (!outcome.waits) {
      const std::size_t kept_bytes = write.kept_bytes;
      write.finish(std::move(outcome.result));
      write = {};
      lock.lock();
      --count_;
      kept_bytes_ -= kept_bytes;
      changed_.notify_all();
      continue;
    }
    lock.lock();
    queue_.push_front(std::move(write));
    while (outcome.due && wakes_ == wakes && Clock::now() < *outcome.due) {
      changed_.wait_until(mutex_, *outcome.due);
    }
    if (!outcome.due && publisher_.in_flight() > 0) break;  // whatever ends next comes back here
  }
  is_serving_ = false;
}

}  // namespace kvslot
