// What the parts of a Volume share. core/ARCHITECTURE.md draws it; the rules are:
//
//   lock order   checkpoint_mutex -> commit_turn -> mutex; flush_mutex -> mutex
//   commit_turn  one batch at a time: reserve, write, publish. The journal ring is its property
//   mutex        the state lock: index, slots, in-flight table, recorded changes. Never held
//                during I/O, nor while calling anybody back
//
// Included by the .cc files that implement Volume.
#pragma once

#include <kvslot/buffer.h>
#include <kvslot/check.h>
#include <kvslot/clock.h>
#include <kvslot/device.h>
#include <kvslot/mutex.h>
#include <kvslot/volume.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/counters.h"
#include "core/index.h"
#include "core/inflight_table.h"
#include "core/journal.h"
#include "core/layout.h"
#include "core/recorded_changes.h"
#include "core/records.h"
#include "core/slot_allocator.h"
#include "core/slot_places.h"

namespace kvslot {

inline constexpr std::size_t kBatchKeysMax = 1024;
inline constexpr std::uint64_t kBatchBytesMax = 64 * kMiB;
inline constexpr std::size_t kBatchRecordsKept = 256;
inline constexpr std::size_t kFaultsKept = 256;

struct Volume::State : SlotPlaces {
  State(std::unique_ptr<Device> opened, const VolumeOptions& chosen, const Geometry& planned)
      : SlotPlaces{planned},
        device(std::move(opened)),
        options(chosen),
        pool(chosen.staging_size_bytes),
        slots(planned.slot_count) {}

  const std::unique_ptr<Device> device;
  const VolumeOptions options;
  BufferPool pool;
  Counters counters;
  std::unique_ptr<Inspector> inspector;

  // --- The state lock and what it guards.
  mutable Mutex mutex;
  Index index GUARDED_BY(mutex);
  SlotAllocator slots GUARDED_BY(mutex);
  InflightTable inflight GUARDED_BY(mutex);
  RecordedChanges recorded GUARDED_BY(mutex);
  std::uint64_t next_object GUARDED_BY(mutex) = 2;
  std::uint64_t next_stamp GUARDED_BY(mutex) = 1;
  std::uint64_t next_sequence GUARDED_BY(mutex) = 1;   // of the next block to be reserved
  std::uint64_t published_upto GUARDED_BY(mutex) = 0;  // blocks written and visible
  std::uint64_t durable_upto GUARDED_BY(mutex) = 0;    // blocks and values flushed
  std::uint64_t flushing_upto GUARDED_BY(mutex) = 0;   // of the flush under way
  std::uint64_t noted_upto GUARDED_BY(mutex) = 0;      // a block or superblock says it is durable
  std::uint64_t unflushed_bytes GUARDED_BY(mutex) = 0;
  tsl::robin_map<std::uint32_t, std::uint64_t> holds GUARDED_BY(mutex);
  // Unlinked nodes that are held: the block that removes them from the stored tree.
  tsl::robin_map<std::uint32_t, std::uint64_t> orphans GUARDED_BY(mutex);
  // Unstored file -> the stored node whose name it took; see "Shadows" in core/names.cc.
  tsl::robin_map<std::uint32_t, NodeId> shadows GUARDED_BY(mutex);
  // Slots of placed windows that no value names yet, by the stamp of the window's first extent.
  std::map<std::uint64_t, std::vector<SlotRun>> placed GUARDED_BY(mutex);
  // Extents of batches under way and of placed windows: the next checkpoint has room for them.
  std::uint64_t unindexed_extents GUARDED_BY(mutex) = 0;
  std::uint64_t reader_ticket GUARDED_BY(mutex) = 0;
  std::set<std::uint64_t> readers GUARDED_BY(mutex);  // tickets of reads under way
  bool checkpoint_running GUARDED_BY(mutex) = false;
  std::uint32_t checkpoint_taken GUARDED_BY(mutex) = 0;    // slots taken by the one under way
  std::vector<SlotRun> checkpoint_runs GUARDED_BY(mutex);  // of the current checkpoint
  std::vector<SlotRun> previous_runs GUARDED_BY(mutex);    // of the one before
  // A superblock may be on the device in part, and names previous_runs: another replaces it first.
  bool is_superblock_uncertain GUARDED_BY(mutex) = false;
  std::deque<BatchRecord> batches GUARDED_BY(mutex);
  std::deque<FaultRecord> faults GUARDED_BY(mutex);
  std::function<void()> on_recorded GUARDED_BY(mutex);
  std::function<void(const FaultRecord&)> on_stopped GUARDED_BY(mutex);
  Condition recorded_drained;                         // a batch took them, or was refused
  bool recorded_refused GUARDED_BY(mutex) = false;    // the last block had no room
  Condition readers_left;                             // a read ended
  std::uint32_t waiting_calls GUARDED_BY(mutex) = 0;  // in one of the two
  JournalInfo journal_info GUARDED_BY(mutex);         // copy of the ring for inspection
  const char* read_only_reason GUARDED_BY(mutex) = nullptr;
  bool closing GUARDED_BY(mutex) = false;  // no new changes; what was recorded is still committed
  bool closed GUARDED_BY(mutex) = false;

  // --- The commit turn and what it guards.
  Mutex commit_turn;
  std::unique_ptr<JournalRing> ring GUARDED_BY(commit_turn);

  Mutex flush_mutex;       // one flush at a time; the others share its effect
  Mutex checkpoint_mutex;  // one checkpoint at a time
  Superblock superblock GUARDED_BY(checkpoint_mutex);
  std::uint64_t checkpoint_begun GUARDED_BY(checkpoint_mutex) = 0;  // number of the last attempt

  std::uint64_t recovery_us = 0;  // set by open
  std::uint64_t recovered_nodes = 0;

  // --- Helpers of several parts (core/volume.cc unless noted).
  [[nodiscard]] Result<void> check_writable() const REQUIRES(mutex);
  // The same for what was recorded before, also while the store is being closed.
  [[nodiscard]] Result<void> check_recordable() const REQUIRES(mutex);
  // Until the store is opened again. Only the first cause is noted, and kept among the faults.
  void stop_writes(const char* reason, FaultRecord fault) EXCLUDES(mutex);
  // The same where the error is the whole device's.
  void stop_if_lost(int os_errno) EXCLUDES(mutex);
  void note_fault(FaultRecord fault) EXCLUDES(mutex);
  [[nodiscard]] TimestampNs now() const {
    return options.clock ? options.clock() : wall_clock_ns();
  }
  // Times that were left out are those of now.
  [[nodiscard]] Attributes with_times(Attributes attributes) const;
  // Device::run; a device that is lost stops writes.
  void run(std::span<IoRequest> requests) EXCLUDES(mutex);
  // A failure stops writes: what was written may be lost, and a later flush would not tell.
  [[nodiscard]] Result<void> flush_device() EXCLUDES(mutex);
  // Makes `next` the superblock, durably (core/checkpoint.cc).
  [[nodiscard]] Result<void> switch_superblock(const Superblock& next) REQUIRES(checkpoint_mutex);
  // Waits, without the lock, until what is recorded fits a block; then whether more may be.
  [[nodiscard]] Result<void> admit_record() REQUIRES(mutex);
  // Appends to what the next block will hold.
  void record(const Record& change) REQUIRES(mutex);
  // Takes everything recorded, for the block about to be made.
  [[nodiscard]] RecordedChanges take_recorded() REQUIRES(mutex);
  // Slots that the next checkpoint takes at most when `more_bytes` of images are added.
  [[nodiscard]] std::uint64_t checkpoint_slots(std::uint64_t more_bytes) const REQUIRES(mutex);
  // How many of them are not in hand already.
  [[nodiscard]] std::uint32_t checkpoint_slots_needed(std::uint64_t more_bytes) const
      REQUIRES(mutex);
  // Keeps the reserve right after the index changed; kNoSpace when `more_bytes` would not fit.
  [[nodiscard]] Result<void> admit_image_bytes(std::uint64_t more_bytes) REQUIRES(mutex);
  void update_checkpoint_reserve() REQUIRES(mutex);
  // Frees the slots of the checkpoint before; whether so many can be had, with these if need be.
  void give_up_previous() REQUIRES(mutex);
  [[nodiscard]] bool has_available(std::uint64_t slot_count) REQUIRES(mutex);
  // Frees the slots of extents once block `sequence` is durable.
  void doom_extents(std::span<const Extent> extents, std::uint64_t sequence) REQUIRES(mutex);
  void reclaim() REQUIRES(mutex);
  [[nodiscard]] std::uint64_t oldest_reader() const REQUIRES(mutex) {
    return readers.empty() ? UINT64_MAX : *readers.begin();
  }
  // Forgets an unlinked node that nobody holds, with its slots.
  void drop_if_unheld(NodeId node) REQUIRES(mutex);
  void hold_locked(NodeId node, std::uint64_t count) REQUIRES(mutex);
  void release_locked(NodeId node, std::uint64_t count) REQUIRES(mutex);
  // Removes a stored node from the stored tree, or an unstored one from memory (core/names.cc).
  void retire(NodeId node) REQUIRES(mutex);
  // Ends the shadow that `node` casts, if any: the hidden node is gone for good, and what it hides.
  void end_shadow(NodeId node) REQUIRES(mutex);
  // Lets go of a hidden node whose first commit failed; what it hid is hidden by its hider now.
  void unhide(NodeId node) REQUIRES(mutex);
  // Resolves a key, making missing directories; the file itself may be missing (core/names.cc).
  struct Place {
    NodeId directory = NodeId::kNone;
    std::string_view name;
    NodeId node = NodeId::kNone;
  };
  [[nodiscard]] Result<Place> place_of(std::string_view key, bool make_directories,
                                       const Attributes& attributes) REQUIRES(mutex);
  [[nodiscard]] Result<NodeId> add_node(NodeId parent, std::string_view name, NodeKind kind,
                                        const Attributes& attributes, std::string_view target)
      REQUIRES(mutex);
  [[nodiscard]] NodeInfo info_of(NodeId node) const REQUIRES(mutex);

  // Recorded changes that are over this wait for a commit to take some away.
  [[nodiscard]] std::uint64_t recorded_bytes_max() const {
    return std::max<std::uint64_t>(geometry.journal_size_bytes / 16, 16 * kKiB);
  }
  // What commits leave free in the ring, for the block that ends a checkpoint.
  [[nodiscard]] std::uint64_t journal_headroom() const { return geometry.journal_size_bytes / 4; }

  Volume* volume = nullptr;  // the one this is the state of
};

// Rebuilds the state from the device, then (unless read-only) opens a new epoch (core/recovery.cc).
[[nodiscard]] Result<void> recover(Volume::State& state);
// Writes a checkpoint and switches to it (core/checkpoint.cc).
[[nodiscard]] Result<void> run_checkpoint(Volume::State& state, bool clean)
    REQUIRES(state.checkpoint_mutex);
// A checkpoint's last step, for which commits leave room (core/commit.cc). Gives published_upto.
Result<std::uint64_t> commit_recorded(Volume::State& state);
[[nodiscard]] CheckpointInfo info_of(const CheckpointRoot& root);
[[nodiscard]] std::uint64_t random_u64();
[[nodiscard]] std::unique_ptr<Inspector> make_inspector(Volume::State& state);

}  // namespace kvslot
