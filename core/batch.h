// One batch: the changes of one round of a commit, from reservation to publication.
//
// Step before: core/commit.cc decides what goes into the round. Step between: core/batch_writer.*
// puts it on the device.
#pragma once

#include <kvslot/volume.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/state.h"

namespace kvslot {

// One extent on its way to the device.
struct PlannedExtent {
  Extent extent;
  std::byte* data = nullptr;  // extent.size_bytes of them, room up to a whole block
  int error = 0;              // of the last attempt to write it
  [[nodiscard]] std::uint32_t padded_bytes() const {
    return static_cast<std::uint32_t>(round_up(extent.size_bytes, kBlockSizeBytes));
  }
};

struct PlannedWindow {
  std::uint32_t window = 0;
  std::vector<SlotRun> runs;
  std::vector<PlannedExtent> extents;
};

// One change and what was decided about it. Everything a record says is copied under the lock,
// so that encoding needs none.
struct PlannedChange {
  ContentChange* change = nullptr;
  NodeId node = NodeId::kNone;
  bool created = false;           // the batch made the node
  bool is_set = false;            // recorded as SetNode, otherwise as PatchContent
  NodeImage image;                // object, parent, name, attributes, size, xattrs
  NodeId parent = NodeId::kNone;  // where the node was when reserved
  std::vector<PlannedWindow> windows;
  ObjectId hidden = ObjectId::kNone;  // shadowed node that this commit removes
  int error = 0;                      // errno that dropped it after reservation
  [[nodiscard]] bool is_placing() const { return change->place_only; }
};

// Threads: one thread at a time, the holder of the commit turn.
class Batch {
 public:
  Batch(Volume::State& state, std::span<ContentChange> changes)
      : state_(state), changes_(changes) {}

  enum class Reserved : std::uint8_t {
    kReady,    // write and publish
    kNothing,  // no change needs the device and nothing was recorded
    kStarved,  // slots are on their way back: flush, and reserve again
  };
  // One lock. A change that cannot be reserved has its result and takes no further part.
  Reserved reserve(bool wait_for_slots);
  // One lock. Results, index, in-flight table, slots.
  void publish(const BatchRecord& measured, std::uint64_t journal_bytes);
  // The block could not be written. If that is certain, everything is undone and what was
  // recorded waits for the next batch; otherwise the slots stay taken.
  void abandon(const Error& error, bool certain);

  // How many of the changes, from the first on, the batch decided about; the others are untouched.
  [[nodiscard]] std::size_t taken_count() const { return taken_count_; }

  // Whether a flush would bring back slots for extents that could not be written.
  [[nodiscard]] bool lacks_slots_to_move() const;
  // New places for the extents of a change that could not be written; false: no space.
  [[nodiscard]] bool move_elsewhere(PlannedChange& planned);
  // Slots of windows that failed again are not given back with the others.
  void quarantine_failed(PlannedChange& planned);
  // What the block holds: recorded changes, quarantined slots, contents of surviving changes.
  [[nodiscard]] std::vector<std::byte> encode_records(std::uint32_t& count) const;

  [[nodiscard]] std::span<PlannedChange> planned() { return planned_; }
  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  [[nodiscard]] std::uint64_t durable_upto() const { return durable_upto_; }
  [[nodiscard]] std::uint32_t recorded_count() const { return recorded_.count; }

 private:
  [[nodiscard]] Result<void> plan(ContentChange& change, PlannedChange& planned)
      REQUIRES(state_.mutex);
  [[nodiscard]] Result<void> resolve(ContentChange& change, PlannedChange& planned)
      REQUIRES(state_.mutex);
  [[nodiscard]] Result<void> take_slots(ContentChange& change, PlannedChange& planned)
      REQUIRES(state_.mutex);
  void cut_window(const WindowWrite& write, PlannedWindow& window) REQUIRES(state_.mutex);
  void describe(ContentChange& change, PlannedChange& planned) REQUIRES(state_.mutex);
  void undo(PlannedChange& planned) REQUIRES(state_.mutex);
  void quarantine_window(PlannedWindow& window) REQUIRES(state_.mutex);
  void finish(PlannedChange& planned) REQUIRES(state_.mutex);
  void finish_placing(PlannedChange& planned) REQUIRES(state_.mutex);
  void publish_content(PlannedChange& planned) REQUIRES(state_.mutex);
  void settle_names(PlannedChange& planned) REQUIRES(state_.mutex);
  [[nodiscard]] std::vector<Extent> merged_content(const PlannedChange& planned,
                                                   std::vector<Extent>& replaced) const
      REQUIRES(state_.mutex);

  Volume::State& state_;
  std::span<ContentChange> changes_;
  std::vector<PlannedChange> planned_;
  std::size_t taken_count_ = 0;
  std::uint64_t xattr_bytes_ = 0;  // in the records of planned_
  bool is_full_ = false;           // the last plan() found no room for its attributes
  RecordedChanges recorded_;
  std::vector<SlotRun> quarantined_;
  std::uint64_t sequence_ = 0;
  std::uint64_t durable_upto_ = 0;
};

}  // namespace kvslot
