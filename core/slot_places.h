// Where the slots, blocks and windows of a store are: arithmetic on its geometry, which says all.
// A part of Volume::State.
#pragma once

#include <kvslot/options.h>
#include <kvslot/types.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/layout.h"

namespace kvslot {

// Threads: immutable.
struct SlotPlaces {
  const Geometry geometry;

  [[nodiscard]] std::uint32_t slots_of(std::uint64_t size_bytes) const {
    return static_cast<std::uint32_t>(units_of(size_bytes, geometry.slot_size_bytes));
  }
  [[nodiscard]] std::uint32_t first_block_of(SlotId slot) const {
    return static_cast<std::uint32_t>(geometry.slots_offset_bytes / kBlockSizeBytes +
                                      std::uint64_t{static_cast<std::uint32_t>(slot)} *
                                          geometry.blocks_per_slot());
  }
  [[nodiscard]] SlotId slot_of(std::uint32_t device_block) const {
    return SlotId{
        static_cast<std::uint32_t>((device_block - geometry.slots_offset_bytes / kBlockSizeBytes) /
                                   geometry.blocks_per_slot())};
  }
  // The slots under these extents, merged; extents of one window may share a slot.
  [[nodiscard]] std::vector<SlotRun> runs_of(std::span<const Extent> extents) const;
  [[nodiscard]] std::uint64_t window_of(const Extent& extent) const {
    return std::uint64_t{extent.file_block} * kBlockSizeBytes / geometry.window_size_bytes();
  }
};

}  // namespace kvslot
