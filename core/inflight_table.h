// Puts between their reservation and their publication, and those not flushed yet. Used by
// core/commit.cc under the state lock; read by the inspector.
#pragma once

#include <kvslot/inspect.h>
#include <kvslot/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

namespace kvslot {

// Threads: one thread at a time.
class InflightTable {
 public:
  struct Entry {
    NodeId node = NodeId::kNone;
    ObjectId object = ObjectId::kNone;
    std::uint64_t batch = 0;
    std::uint32_t slots = 0;
    std::uint64_t bytes = 0;
    std::uint32_t waiters = 0;
    InflightState state = InflightState::kReserved;
    std::chrono::steady_clock::time_point since;
  };

  void add(const Entry& entry) { entries_.push_back(entry); }
  void set_state(InflightState state) {
    for (Entry& entry : entries_) entry.state = state;
  }
  // One batch is under way at a time, so a batch leaves as a whole.
  void clear() { entries_.clear(); }
  // The same for one that was published; the newest are remembered until they are durable.
  void publish() {
    published_.insert(published_.end(), entries_.begin(), entries_.end());
    while (published_.size() > kPublishedMax) published_.pop_front();
    entries_.clear();
  }
  void forget_durable(std::uint64_t upto) {
    while (!published_.empty() && published_.front().batch <= upto) published_.pop_front();
  }
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] const std::deque<Entry>& published() const { return published_; }

 private:
  static constexpr std::size_t kPublishedMax = 4096;

  std::vector<Entry> entries_;   // at most kBatchKeysMax
  std::deque<Entry> published_;  // not known to be durable, oldest first
};

}  // namespace kvslot
