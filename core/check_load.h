// Rebuilds the state of a store from one of its checkpoints and the journal since, and says why
// where it cannot. Step before: core/check_device.cc chose the superblock. Step after: the state
// is judged.
#pragma once

#include <kvslot/device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/check_state.h"
#include "core/check_values.h"
#include "core/checkpoint_layout.h"
#include "core/layout.h"

namespace kvslot {

// What made a step impossible, for people; nothing when it went well.
using Failure = std::optional<std::string>;

// Threads: one thread at a time.
class CheckLoader {
 public:
  CheckLoader(Device& device, const Superblock& superblock, CheckedState& state)
      : device_(device), superblock_(superblock), state_(state) {}

  // From the current checkpoint, or from the one before it.
  [[nodiscard]] Failure load(bool from_previous);
  // The same with all blocks of the log, whether their values are on the device or not.
  [[nodiscard]] Failure load_uncut(bool from_previous) {
    return load_upto(from_previous, UINT64_MAX);
  }
  // Whether the checkpoint before could stand in for the current one; the state is left alone.
  [[nodiscard]] Failure probe(const CheckpointRoot& root);

  // Of the last load that went well.
  [[nodiscard]] const std::vector<SlotRun>& checkpoint_runs() const { return runs_; }
  [[nodiscard]] std::uint64_t node_records() const { return node_records_; }
  [[nodiscard]] std::uint64_t journal_blocks() const { return blocks_; }
  // The block from which on the log does not count, as its values never reached the device.
  [[nodiscard]] std::optional<std::uint64_t> cut_at() const { return cut_at_; }
  // Blocks that contradict themselves without being useless.
  [[nodiscard]] const std::vector<std::string>& oddities() const { return oddities_; }
  // Why nobody may write, although what was loaded can be read.
  [[nodiscard]] const Failure& obstacle() const { return obstacle_; }

 private:
  using OnRecord = std::function<void(Record&&)>;
  [[nodiscard]] Failure load_upto(bool from_previous, std::uint64_t limit);
  [[nodiscard]] Failure read_checkpoint(const CheckpointRoot& root, const OnRecord& on_record);
  [[nodiscard]] Failure read_manifests(const CheckpointRoot& root,
                                       std::vector<ManifestEntry>& entries);
  [[nodiscard]] Failure take_records(std::vector<std::byte>& stream, std::uint64_t stream_at,
                                     const OnRecord& on_record) const;
  [[nodiscard]] Failure replay(const JournalPosition& from, std::uint64_t limit);
  [[nodiscard]] Failure apply_block(const struct JournalBlock& block);
  [[nodiscard]] std::optional<std::uint64_t> first_unwritten();
  [[nodiscard]] bool is_unwritten(ExtentReader& reader, ExtentToRead item, std::uint64_t sequence);
  // Behind the end of a device that is shorter than it was.
  [[nodiscard]] bool is_cut_off(const Extent& extent) const {
    return std::uint64_t{extent.device_block} * kBlockSizeBytes +
               ExtentReader::padded_bytes(extent) >
           device_.info().size_bytes;
  }
  [[nodiscard]] std::uint64_t offset_of(std::uint32_t slot) const {
    return superblock_.geometry.slots_offset_bytes +
           std::uint64_t{slot} * superblock_.geometry.slot_size_bytes;
  }

  Device& device_;
  const Superblock& superblock_;
  CheckedState& state_;
  std::vector<SlotRun> runs_;
  std::uint64_t node_records_ = 0;
  std::uint64_t blocks_ = 0;
  std::uint64_t next_sequence_ = 0;  // of the block behind the last one
  std::uint64_t durable_upto_ = 0;
  std::optional<std::uint64_t> cut_at_;
  std::vector<std::string> oddities_;
  Failure obstacle_;
};

}  // namespace kvslot
