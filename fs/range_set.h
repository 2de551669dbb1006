// Disjoint ranges of numbers, sorted: which bytes of a window are dirty, which windows reserved,
// which bytes of a file did not fit. Used by live_content and filesystem. Meant for a handful of
// ranges.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvslot {

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // exclusive
  bool operator==(const Range&) const = default;
};

// Threads: one thread at a time.
class RangeSet {
 public:
  // Adds [begin, end), joining ranges that overlap or touch.
  void add(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    auto first =
        std::lower_bound(ranges_.begin(), ranges_.end(), begin,
                         [](const Range& range, std::uint64_t at) { return range.end < at; });
    auto last = first;
    while (last != ranges_.end() && last->begin <= end) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
      ++last;
    }
    first = ranges_.erase(first, last);
    ranges_.insert(first, Range{.begin = begin, .end = end});
  }

  // Takes [begin, end) out.
  void remove(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    std::vector<Range> left;
    for (const Range& range : ranges_) {
      if (range.begin < begin) left.push_back({range.begin, std::min(range.end, begin)});
      if (range.end > end) left.push_back({std::max(range.begin, end), range.end});
    }
    ranges_ = std::move(left);
  }

  // Forgets everything at or past `end`.
  void clip(std::uint64_t end) {
    while (!ranges_.empty() && ranges_.back().begin >= end) ranges_.pop_back();
    if (!ranges_.empty()) ranges_.back().end = std::min(ranges_.back().end, end);
  }

  // What [begin, end) has outside of the set, in order.
  [[nodiscard]] std::vector<Range> gaps(std::uint64_t begin, std::uint64_t end) const {
    std::vector<Range> result;
    for (const Range& range : ranges_) {
      if (range.end <= begin) continue;
      if (range.begin >= end || begin >= end) break;
      if (range.begin > begin) result.push_back({.begin = begin, .end = range.begin});
      begin = range.end;
    }
    if (begin < end) result.push_back({.begin = begin, .end = end});
    return result;
  }

  [[nodiscard]] bool covers(std::uint64_t begin, std::uint64_t end) const {
    return gaps(begin, end).empty();
  }
  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  void clear() { ranges_.clear(); }
  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

}  // namespace kvslot
