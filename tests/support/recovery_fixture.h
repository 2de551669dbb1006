// Putting, damaging and reading back what a store holds that crashes, in a few verbs.
#pragma once

#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/support/volume_fixture.h"

namespace kvslot::testing {

class RecoveryTest : public VolumeTest {
 protected:
  void put(std::string_view key, std::size_t size_bytes = 5000) {
    const auto stored = put_key(*volume_, key, value_of(key[0] + key.size(), size_bytes));
    EXPECT_TRUE(stored) << stored.error().step;
  }
  void put_durably(std::string_view key, std::size_t size_bytes = 5000) {
    put(key, size_bytes);
    EXPECT_TRUE(volume_->flush());
  }
  void expect_value(std::string_view key, std::size_t size_bytes = 5000) {
    EXPECT_TRUE(read_key(*volume_, key) == value_of(key[0] + key.size(), size_bytes)) << key;
  }
  std::vector<std::string> keys() {
    std::vector<std::string> names;
    const auto entries = volume_->list(NodeId::kRoot, 0, SIZE_MAX);
    for (const DirectoryEntry& entry : *entries) names.push_back(entry.name);
    return names;
  }
  void damage_value(std::string_view key) {
    const auto record = volume_->inspector().node(volume_->find(key)->node);
    device_->flip_bit(std::uint64_t{record->extents.front().device_block} * kBlockSizeBytes, 3);
  }
  [[nodiscard]] std::uint64_t offset_of_slot(std::uint32_t slot) const {
    const Geometry& geometry = volume_->geometry();
    return geometry.slots_offset_bytes + std::uint64_t{slot} * geometry.slot_size_bytes;
  }
  static std::vector<std::byte> bytes_of_device(const SimulatedDevice& device) {
    std::vector<std::byte> bytes(device.info().size_bytes);
    device.peek(0, bytes);
    return bytes;
  }
};

}  // namespace kvslot::testing
