// Which slots are free. Free space is derived from the index at open and never stored. Slots that
// a record gave up become free only when that record is durable and no reader that started
// earlier is still under way, so nothing a crash may bring back is ever overwritten.
//
// Used by core/commit.cc, core/checkpoint.cc and core/recovery.cc under the state lock.
#pragma once

#include <kvslot/error.h>
#include <kvslot/inspect.h>
#include <kvslot/types.h>

#include <cstdint>
#include <deque>
#include <vector>

namespace kvslot {

// Threads: one thread at a time.
class SlotAllocator {
 public:
  explicit SlotAllocator(std::uint32_t slot_count);

  [[nodiscard]] std::uint32_t slot_count() const { return slot_count_; }
  [[nodiscard]] std::uint32_t free_count() const { return free_count_; }
  [[nodiscard]] std::uint32_t doomed_count() const { return doomed_count_; }
  [[nodiscard]] std::uint32_t reserved_count() const { return reserved_count_; }
  [[nodiscard]] std::uint32_t quarantined_count() const { return quarantined_count_; }

  // What new reservations may still take: free and doomed slots, less what is promised already.
  [[nodiscard]] std::uint32_t available_count() const;
  // Slots kept back for the next checkpoint; nothing else can take them.
  void set_checkpoint_reserve(std::uint32_t count) { checkpoint_reserve_ = count; }
  [[nodiscard]] std::uint32_t checkpoint_reserve() const { return checkpoint_reserve_; }

  // Promises and takes back promises; kNoSpace when not all can be promised.
  Result<void> reserve(std::uint32_t count);
  void unreserve(std::uint32_t count);

  // Takes free slots, in one run where there is one, otherwise in as few as it finds on its way
  // round; appends them to `runs`. All or nothing: false when fewer are free.
  [[nodiscard]] bool take(std::uint32_t count, std::vector<SlotRun>& runs);
  // Takes the next free run, at most count_max slots of it; a count of 0 when nothing is free.
  [[nodiscard]] SlotRun take_some(std::uint32_t count_max);
  // At recovery: this run belongs to a value. False when part of it is taken already.
  [[nodiscard]] bool claim(SlotRun run);

  // Back at once: nothing durable ever named these slots.
  void give_back(SlotRun run);
  // Back when block `sequence` is durable and all reads up to `reader_ticket` have ended.
  void doom(SlotRun run, std::uint64_t sequence, std::uint64_t reader_ticket);
  // Frees what became free.
  void reclaim(std::uint64_t durable_upto, std::uint64_t oldest_reader);
  // Never again.
  void quarantine(SlotRun run);
  [[nodiscard]] const std::vector<SlotRun>& quarantined() const { return quarantined_; }

  [[nodiscard]] bool is_free(std::uint32_t slot) const {
    return (free_[slot / 64] >> (slot % 64) & 1) != 0;
  }
  // States other than free that the allocator knows, for inspection: doomed and quarantined.
  struct Marked {
    SlotRun run;
    SlotState state;
  };
  [[nodiscard]] std::vector<Marked> marked() const;

 private:
  struct Doomed {
    SlotRun run;
    std::uint64_t sequence;
    std::uint64_t reader_ticket;
  };
  static constexpr std::uint32_t kGroupSlots = 4096;  // one counter, to pass over full regions

  void mark(SlotRun run, bool free);
  [[nodiscard]] std::uint32_t next_free(std::uint32_t from) const;  // slot_count_ when none
  [[nodiscard]] std::uint32_t run_length(std::uint32_t from, std::uint32_t limit) const;
  [[nodiscard]] bool take_contiguous(std::uint32_t count, SlotRun& run);
  [[nodiscard]] bool search(std::uint32_t from, std::uint32_t to, std::uint32_t count,
                            SlotRun& run);

  const std::uint32_t slot_count_;
  std::vector<std::uint64_t> free_;        // one bit a slot
  std::vector<std::uint16_t> group_free_;  // free slots by group
  std::uint32_t free_count_ = 0;
  std::uint32_t reserved_count_ = 0;
  std::uint32_t doomed_count_ = 0;
  std::uint32_t quarantined_count_ = 0;
  std::uint32_t checkpoint_reserve_ = 0;
  std::uint32_t cursor_ = 0;             // where the next search starts: rotates
  std::uint32_t run_hint_ = UINT32_MAX;  // no free run is longer, since nothing was freed
  std::uint32_t run_seen_ = 0;           // longest run of the search under way
  std::deque<Doomed> doomed_;            // in order of sequence and ticket
  std::vector<SlotRun> quarantined_;
};

}  // namespace kvslot
