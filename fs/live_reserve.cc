// Space that is kept for writes to come. Called by fs/filesystem for fallocate.
#include <algorithm>
#include <cerrno>
#include <vector>

#include "fs/live_content.h"

namespace kvslot {

// Which of the file's slots have bytes, in no order and perhaps twice.
std::vector<Range> LiveContent::present_slots(const Range& slots) const {
  const std::uint64_t slots_of_window = window_size_bytes_ / slot_size_bytes_;
  std::vector<Range> present;
  const auto add_windows = [&](const auto& windows) {
    const auto first = static_cast<std::uint32_t>(slots.begin / slots_of_window);
    for (auto at = windows.lower_bound(first); at != windows.end(); ++at) {
      const std::uint64_t begin = at->first * slots_of_window;
      if (begin >= slots.end) break;
      present.push_back({.begin = begin, .end = begin + slots_for(present_bytes(at->first))});
    }
  };
  add_windows(windows_);
  add_windows(in_flight_);
  add_windows(placed_);
  const std::uint64_t end = slots.end * slot_size_bytes_;
  for (Range data{.begin = 0, .end = slots.begin * slot_size_bytes_};;) {
    data = stored_data(data.end, end);
    if (data.begin >= data.end) break;
    present.push_back({.begin = data.begin / slot_size_bytes_,
                       .end = (data.end + slot_size_bytes_ - 1) / slot_size_bytes_});
  }
  return present;
}

Result<void> LiveContent::reserve(std::uint64_t offset_bytes, std::uint64_t length_bytes) {
  const std::uint64_t end = offset_bytes + length_bytes;
  if (end < offset_bytes || end > kFileSizeBytesMax) {
    return fail(Errc::kTooLarge, "fallocate: past the largest file", EFBIG);
  }
  const Range wanted{.begin = offset_bytes / slot_size_bytes_,
                     .end = (end + slot_size_bytes_ - 1) / slot_size_bytes_};
  std::vector<Range> present = present_slots(wanted);
  present.insert(present.end(), reserved_.ranges().begin(), reserved_.ranges().end());
  std::ranges::sort(present, {}, &Range::begin);
  std::uint64_t slots = 0;
  std::uint64_t at = wanted.begin;
  for (const Range& range : present) {
    if (range.begin >= wanted.end) break;
    if (range.begin > at) slots += range.begin - at;
    at = std::max(at, range.end);
  }
  if (at < wanted.end) slots += wanted.end - at;
  const std::uint64_t all = volume_.geometry().slot_count;
  if (slots > all) return fail(Errc::kNoSpace, "fallocate", ENOSPC);
  if (auto taken = volume_.reserve_slots(static_cast<std::uint32_t>(slots)); !taken) return taken;
  extra_slots_ += static_cast<std::uint32_t>(slots);
  reserved_.add(wanted.begin, wanted.end);
  return {};
}

}  // namespace kvslot
