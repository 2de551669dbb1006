// Puts between their reservation and their publication. Used by core/commit.cc under the state
// lock; read by the inspector.
#pragma once

#include <kvslot/inspect.h>
#include <kvslot/types.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace kvslot {

// Threads: one thread at a time.
class InflightTable {
 public:
  struct Entry {
    NodeId node = NodeId::kNone;
    std::uint64_t batch = 0;
    std::uint32_t slots = 0;
    std::uint64_t bytes = 0;
    InflightState state = InflightState::kReserved;
    std::chrono::steady_clock::time_point since;
  };

  void add(const Entry& entry) { entries_.push_back(entry); }
  void set_state(InflightState state) {
    for (Entry& entry : entries_) entry.state = state;
  }
  // One batch is under way at a time, so a batch leaves as a whole.
  void clear() { entries_.clear(); }
  [[nodiscard]] bool contains(NodeId node) const {
    for (const Entry& entry : entries_)
      if (entry.node == node) return true;
    return false;
  }
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;  // at most kBatchKeysMax
};

}  // namespace kvslot
