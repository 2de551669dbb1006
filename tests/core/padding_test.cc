// Bytes that nothing names: the slack behind values, free slots, the ring ahead of its head, what
// lies beside a superblock.
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/superblocks.h"
#include "tests/support/engine.h"
#include "tests/support/traced_store.h"

namespace kvslot::testing {
namespace {

TEST(Padding, WhatLiesBesideTheBytesThatCountIsNeverRead) {
  TracedStore store(12);
  store.open(make_device(16 * kMiB));
  for (int i = 0; i < 30; ++i) store.put("k" + std::to_string(i), 700 * i + 1);
  store.checkpoint();
  store.put_in_pieces("large", 300'001);
  store.put("last", 10, true);
  const Geometry geometry = store.volume().geometry();
  SimulatedDevice& device = store.device();
  const std::vector<std::byte> poison(2 * kBlockSizeBytes, std::byte{0xA5});
  // The slack behind every value, its trailer included.
  for (const std::string& key : store.model().files()) {
    const auto record = store.volume().inspector().node(store.volume().find(key)->node);
    for (const Extent& extent : record->extents) {
      const std::uint64_t at =
          std::uint64_t{extent.device_block} * kBlockSizeBytes + extent.size_bytes;
      device.poke(at, ConstBytes(poison).first(round_up(at, kBlockSizeBytes) - at));
    }
  }
  // Free slots, and the ring ahead of the head.
  std::uint32_t cursor = 0;
  for (auto records = store.volume().inspector().slots(cursor); !records.empty();
       records = store.volume().inspector().slots(cursor)) {
    for (const SlotRecord& record : records) {
      if (record.state != SlotState::kFree) continue;
      for (std::uint32_t i = 0; i < std::min(record.run.count, 500U); ++i)
        device.poke(
            geometry.slots_offset_bytes +
                (static_cast<std::uint64_t>(record.run.first) + i) * geometry.slot_size_bytes,
            ConstBytes(poison).first(geometry.slot_size_bytes));
    }
  }
  const std::uint64_t head = store.volume().inspector().journal().head_offset_bytes;
  for (std::uint64_t at = head; at + kBlockSizeBytes <= geometry.journal_size_bytes;
       at += kBlockSizeBytes)
    device.poke(geometry.journal_offset_bytes + at, ConstBytes(poison).first(kBlockSizeBytes));
  for (const std::uint64_t beside : superblock_offsets(geometry.size_bytes))
    if (beside % (64 * kKiB) == 0) device.poke(beside + kBlockSizeBytes, poison);
  store.compare_live();
  ASSERT_TRUE(store.open(device.survivor(1, CrashMode::kNone)));
  store.compare();
  store.patch("k29", 40'000, true);
  ASSERT_TRUE(store.open(store.device().survivor(1, CrashMode::kNone)));
  store.compare();
}

}  // namespace
}  // namespace kvslot::testing
