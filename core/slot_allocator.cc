// The slot bitmap and what waits to return to it.
#include "core/slot_allocator.h"

#include <kvslot/check.h>

#include <algorithm>
#include <bit>
#include <cerrno>

namespace kvslot {
namespace {

std::uint32_t first_of(SlotRun run) { return static_cast<std::uint32_t>(run.first); }
std::uint32_t end_of(SlotRun run) { return first_of(run) + run.count; }

}  // namespace

SlotAllocator::SlotAllocator(std::uint32_t slot_count)
    : slot_count_(slot_count),
      free_((slot_count + 63) / 64, 0),
      group_free_((slot_count + kGroupSlots - 1) / kGroupSlots, 0) {
  mark({SlotId{0}, slot_count}, true);
}

std::uint32_t SlotAllocator::available_count() const {
  const std::uint32_t have = free_count_ + doomed_count_;
  const std::uint64_t promised = std::uint64_t{reserved_count_} + checkpoint_reserve_;
  return promised >= have ? 0 : have - static_cast<std::uint32_t>(promised);
}

Result<void> SlotAllocator::reserve(std::uint32_t count) {
  if (count > available_count()) return fail(Errc::kNoSpace, "slots", ENOSPC);
  reserved_count_ += count;
  return {};
}

void SlotAllocator::unreserve(std::uint32_t count) {
  KVSLOT_CHECK(count <= reserved_count_, "a reservation is given back once");
  reserved_count_ -= count;
}

bool SlotAllocator::take(std::uint32_t count, std::vector<SlotRun>& runs) {
  if (count > free_count_) return false;
  if (count == 0) return true;
  SlotRun run;
  if (take_contiguous(count, run)) {
    runs.push_back(run);
    return true;
  }
  while (count > 0) {
    run = take_some(count);
    runs.push_back(run);
    count -= run.count;
  }
  return true;
}

SlotRun SlotAllocator::take_some(std::uint32_t count_max) {
  if (free_count_ == 0) return {};
  std::uint32_t start = next_free(cursor_);
  if (start == slot_count_) start = next_free(0);
  KVSLOT_CHECK(start < slot_count_, "free_count agrees with the bitmap");
  const SlotRun run{SlotId{start}, run_length(start, count_max)};
  mark(run, false);
  cursor_ = end_of(run) == slot_count_ ? 0 : end_of(run);
  return run;
}

bool SlotAllocator::take_contiguous(std::uint32_t count, SlotRun& run) {
  if (count > run_hint_) return false;
  run_seen_ = 0;
  if (!search(cursor_, slot_count_, count, run) &&
      !search(0, std::min(slot_count_, cursor_ + count), count, run)) {
    run_hint_ = run_seen_;
    return false;
  }
  mark(run, false);
  cursor_ = end_of(run) == slot_count_ ? 0 : end_of(run);
  return true;
}

// Finds a run of `count` free slots that starts in [from, to).
bool SlotAllocator::search(std::uint32_t from, std::uint32_t to, std::uint32_t count,
                           SlotRun& run) {
  for (std::uint32_t start = next_free(from); start < to;) {
    const std::uint32_t length = run_length(start, count);
    run_seen_ = std::max(run_seen_, length);
    if (length == count) {
      run = {SlotId{start}, count};
      return true;
    }
    start = next_free(start + length);
  }
  return false;
}

std::uint32_t SlotAllocator::next_free(std::uint32_t from) const {
  while (from < slot_count_) {
    if (group_free_[from / kGroupSlots] == 0) {
      from = (from / kGroupSlots + 1) * kGroupSlots;
      continue;
    }
    const std::uint64_t word = free_[from / 64] >> (from % 64);
    if (word != 0) return from + static_cast<std::uint32_t>(std::countr_zero(word));
    from = (from / 64 + 1) * 64;
  }
  return slot_count_;
}

std::uint32_t SlotAllocator::run_length(std::uint32_t from, std::uint32_t limit) const {
  std::uint32_t length = 0;
  while (length < limit && from + length < slot_count_) {
    const std::uint32_t slot = from + length;
    const std::uint64_t word = free_[slot / 64] >> (slot % 64);
    const auto ones = static_cast<std::uint32_t>(std::countr_one(word));
    length += std::min(ones, 64 - slot % 64);
    if (ones < 64 - slot % 64) break;
  }
  return std::min(length, limit);
}

void SlotAllocator::mark(SlotRun run, bool free) {
  KVSLOT_CHECK(end_of(run) <= slot_count_ && end_of(run) >= first_of(run), "slots in range");
  for (std::uint32_t slot = first_of(run); slot < end_of(run);) {
    const std::uint32_t in_word = std::min(64 - slot % 64, end_of(run) - slot);
    const std::uint64_t mask =
        (in_word == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << in_word) - 1) << (slot % 64);
    std::uint64_t& word = free_[slot / 64];
    KVSLOT_CHECK((word & mask) == (free ? 0 : mask), "a slot is freed once and taken once");
    word ^= mask;
    auto& group = group_free_[slot / kGroupSlots];
    group = static_cast<std::uint16_t>(free ? group + in_word : group - in_word);
    slot += in_word;
  }
  free_count_ = free ? free_count_ + run.count : free_count_ - run.count;
  if (free) run_hint_ = UINT32_MAX;
}

bool SlotAllocator::claim(SlotRun run) {
  if (end_of(run) > slot_count_ || end_of(run) < first_of(run)) return false;
  if (run_length(first_of(run), run.count) != run.count) return false;
  mark(run, false);
  return true;
}

void SlotAllocator::give_back(SlotRun run) { mark(run, true); }

void SlotAllocator::doom(SlotRun run, std::uint64_t sequence, std::uint64_t reader_ticket) {
  doomed_.push_back({run, sequence, reader_ticket});
  doomed_count_ += run.count;
}

void SlotAllocator::reclaim(std::uint64_t durable_upto, std::uint64_t oldest_reader) {
  while (!doomed_.empty() && doomed_.front().sequence <= durable_upto &&
         doomed_.front().reader_ticket < oldest_reader) {
    const SlotRun run = doomed_.front().run;
    doomed_.pop_front();
    doomed_count_ -= run.count;
    mark(run, true);
  }
}

void SlotAllocator::quarantine(SlotRun run) {
  quarantined_.push_back(run);
  quarantined_count_ += run.count;
}

std::vector<SlotAllocator::Marked> SlotAllocator::marked() const {
  std::vector<Marked> all;
  for (const Doomed& doomed : doomed_) all.push_back({doomed.run, SlotState::kDoomed});
  for (const SlotRun run : quarantined_) all.push_back({run, SlotState::kQuarantined});
  return all;
}

}  // namespace kvslot
