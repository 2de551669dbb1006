// First half of recovery: the newest state that checkpoint and journal describe, by object id and
// not yet connected. Nothing is judged but the records themselves.
//
// Step after: core/recovery.cc.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "core/checkpoint_layout.h"
#include "core/state.h"

namespace kvslot {

// Threads: one thread at a time, before anybody else knows the volume.
class StateLoader {
 public:
  struct PendingName {
    ObjectId parent = ObjectId::kNone;
    std::uint64_t cookie = 0;
    std::string name;
  };
  // An extent whose bytes may not have survived.
  struct TailExtent {
    std::uint64_t sequence;
    ObjectId object;
    Extent extent;
  };

  // A block of the journal that may not have survived.
  struct TailBlock {
    std::uint64_t sequence;
    std::uint64_t offset_bytes;  // in the ring
    std::uint64_t size_bytes;
  };

  StateLoader(Volume::State& state, const Superblock& superblock)
      : state_(state), superblock_(superblock), uuid_(superblock.geometry.uuid) {}

  // Fills the index from this checkpoint and the journal behind it, up to block `limit`. Starts
  // from nothing each time. `is_previous`: the checkpoint before the current one.
  Result<void> load(const CheckpointRoot& root, bool is_previous, std::uint64_t limit);

  // The slots that a checkpoint's manifests name, of which only they are read.
  [[nodiscard]] Result<std::vector<SlotRun>> runs_of(const CheckpointRoot& root) const;

  // The node of an object, or kNone.
  [[nodiscard]] NodeId find(ObjectId object) const;
  [[nodiscard]] PendingName& name_of(NodeId node);
  [[nodiscard]] const tsl::robin_map<std::uint64_t, NodeId>& objects() const { return objects_; }
  // In order of sequence: what was written after the last flush the journal knows of.
  [[nodiscard]] const std::deque<TailExtent>& tail() const { return tail_; }
  [[nodiscard]] const std::deque<TailBlock>& tail_blocks() const { return tail_blocks_; }
  [[nodiscard]] const std::vector<SlotRun>& quarantined() const { return quarantined_; }
  [[nodiscard]] const std::vector<SlotRun>& checkpoint_runs() const { return checkpoint_runs_; }
  [[nodiscard]] std::uint64_t blocks() const { return blocks_; }
  [[nodiscard]] std::uint64_t next_object() const { return next_object_; }
  [[nodiscard]] std::uint64_t next_stamp() const { return next_stamp_; }
  // The position behind the last block that was replayed.
  [[nodiscard]] const JournalPosition& end() const { return end_; }

 private:
  void clear(const CheckpointRoot& root);
  // Adds the slots of the manifests to `runs`.
  Result<std::vector<ManifestEntry>> read_manifests(const CheckpointRoot& root,
                                                    std::vector<SlotRun>& runs) const;
  [[nodiscard]] Result<SlotRun> run_of(const ManifestEntry& entry) const;
  Result<void> load_checkpoint(const CheckpointRoot& root);
  Result<void> apply_stream(std::vector<std::byte>& stream);
  Result<void> replay(const JournalPosition& from, std::uint64_t limit);
  void apply(Record record, std::uint64_t sequence);
  void apply_body(SetNode& record, std::uint64_t sequence);
  void apply_body(MoveNode& record, std::uint64_t sequence);
  void apply_body(RemoveNode& record, std::uint64_t sequence);
  void apply_body(SetAttributes& record, std::uint64_t sequence);
  void apply_body(SetXattrs& record, std::uint64_t sequence);
  void apply_body(PatchContent& record, std::uint64_t sequence);
  void apply_body(QuarantineSlots& record, std::uint64_t sequence);
  void note_extents(ObjectId object, const std::vector<Extent>& extents, std::uint64_t sequence);

  Volume::State& state_;
  const Superblock& superblock_;
  const Uuid& uuid_;
  tsl::robin_map<std::uint64_t, NodeId> objects_;
  std::vector<PendingName> names_;  // by node number
  std::deque<TailExtent> tail_;
  std::deque<TailBlock> tail_blocks_;
  std::vector<SlotRun> quarantined_;
  std::vector<SlotRun> checkpoint_runs_;
  std::uint64_t blocks_ = 0;
  std::uint64_t durable_upto_ = 0;  // kept from load to load: where the log is cut, what the blocks
                                    // behind say of those before stays true
  std::uint64_t next_object_ = 0;
  std::uint64_t next_stamp_ = 0;
  JournalPosition end_;
};

}  // namespace kvslot
