// Repair: what it mends, what it leaves, and what is left when power is lost in the middle of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/store.h>

#include <functional>
#include <map>

#include "tests/support/check_report.h"
#include "tests/support/engine.h"
#include "tests/support/planted_store.h"

namespace kvslot {
namespace {

using testing::check;
using ::testing::Contains;
using testing::CrashMode;
using testing::errors_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::SimulatedDevice;
using testing::text_of;
using Planted = testing::PlantedStore;
using Values = std::map<std::string, std::string>;

RepairReport repair(Device& device) {
  auto report = repair_device(device, {});
  EXPECT_TRUE(report) << report.error().step;
  return report ? std::move(*report) : RepairReport{};
}

// Nothing is wrong, and a second repair finds nothing to do.
void expect_mended(SimulatedDevice& device) {
  const CheckReport report = check(device);
  EXPECT_THAT(report.findings, IsEmpty()) << text_of(report);
  const std::uint64_t writes = device.counters().writes;
  EXPECT_THAT(repair(device).done, IsEmpty());
  EXPECT_EQ(device.counters().writes, writes);
}

Values values_of(const SimulatedDevice& device) {
  Values values;
  StoreOptions options;
  options.volume.read_only = true;
  const auto store = Store::open(device.process_crash(), options);
  EXPECT_TRUE(store) << store.error().step;
  if (!store) return values;
  const auto listed = (*store)->list();
  EXPECT_TRUE(listed);
  if (!listed) return values;
  for (const ListedKey& entry : *listed) {
    const auto value = (*store)->get(entry.key);
    EXPECT_TRUE(value) << entry.key;
    values[entry.key] = value.value_or("?");
  }
  return values;
}

// A used store: values in both checkpoints, and in the journal since.
std::unique_ptr<SimulatedDevice> used_device(bool is_closed) {
  testing::StoreHarness harness(32 * kMiB);
  const auto put = [&](const std::string& key, std::size_t size) {
    ASSERT_TRUE(harness.store().put(key, testing::bytes_of(testing::value_of(size, size))));
  };
  for (std::size_t i = 0; i < 20; ++i) put("d/" + std::to_string(i), 1000 * i);
  EXPECT_TRUE(harness.store().checkpoint());
  for (std::size_t i = 10; i < 30; ++i) put("d/" + std::to_string(i), 700 * i);
  EXPECT_TRUE(harness.store().checkpoint());
  for (std::size_t i = 25; i < 40; ++i) put("e/" + std::to_string(i), 300 * i);
  EXPECT_TRUE(harness.store().remove("d/3"));
  EXPECT_TRUE(harness.store().flush());
  if (is_closed) {
    EXPECT_TRUE(harness.store().close());
  }
  return harness.device().survivor(1, is_closed ? CrashMode::kAll : CrashMode::kNone);
}

void damage_manifest(SimulatedDevice& device, bool of_previous = false) {
  const Superblock superblock = *read_superblock(device);
  const CheckpointRoot& root = of_previous ? superblock.previous : superblock.current;
  device.flip_bit(superblock.geometry.slots_offset_bytes +
                      std::uint64_t{root.manifest_slot} * kBlockSizeBytes + 30,
                  1);
}

TEST(RepairDevice, ACleanStoreIsNotWrittenTo) {
  const auto device = used_device(true);
  expect_mended(*device);
}

TEST(RepairDevice, WhatACrashLeavesIsReplayedAndClosed) {
  const auto device = used_device(false);
  const Values before = values_of(*device);
  const RepairReport report = repair(*device);
  EXPECT_FALSE(report.before.damaged);
  EXPECT_THAT(report.done, Contains(HasSubstr("replayed")));
  expect_mended(*device);
  EXPECT_EQ(values_of(*device), before);
}

TEST(RepairDevice, SuperblockCopiesAreRenewedWhicheverOneIsLeft) {
  for (std::size_t left = 0; left < kSuperblockCopies; ++left) {
    SCOPED_TRACE("copy " + std::to_string(left));
    const auto device = used_device(true);
    const Values before = values_of(*device);
    const auto offsets = superblock_offsets(device->info().size_bytes);
    for (std::size_t copy = 0; copy < kSuperblockCopies; ++copy)
      if (copy != left) device->poke(offsets[copy], std::vector<std::byte>(kBlockSizeBytes));
    EXPECT_EQ(errors_of(repair(*device).before).size(), kSuperblockCopies - 1);
    expect_mended(*device);
    EXPECT_EQ(values_of(*device), before);
  }
}

TEST(RepairDevice, StaleCopiesAreRenewed) {
  Planted store;
  store.write();
  Superblock old = store.superblock;
  old.sequence = 4;
  store.device.poke(superblock_offsets(testing::kDeviceBytes)[3], encode_superblock(old));
  EXPECT_FALSE(repair(store.device).done.empty());
  expect_mended(store.device);
}

TEST(RepairDevice, ADamagedCheckpointIsReplacedFromTheOneBefore) {
  for (const bool is_closed : {false, true}) {
    const auto device = used_device(is_closed);
    const Values before = values_of(*device);
    damage_manifest(*device);
    const RepairReport report = repair(*device);
    EXPECT_THAT(errors_of(report.before), Contains(HasSubstr("can be recovered")));
    EXPECT_THAT(report.done, Contains(HasSubstr("fresh checkpoint")));
    expect_mended(*device);
    EXPECT_EQ(values_of(*device), before);
    damage_manifest(*device);
    EXPECT_THAT(errors_of(check(*device)), Contains(HasSubstr("can be recovered")))
        << "there are two good checkpoints again";
  }
}

TEST(RepairDevice, CountsAndContradictionsWithoutConsequenceAreSettled) {
  Planted store;
  store.add_file(2, "key", 10);
  store.add(QuarantineSlots{{SlotId{10}, 1}});
  store.add(QuarantineSlots{{SlotId{0xfffffff0}, 0x20}});
  store.write_block(std::vector<std::byte>(), 3);
  store.write_checkpoint();
  store.superblock.current.node_count += 1;
  store.write_superblocks();
  EXPECT_EQ(errors_of(check(store.device)).size(), 4);
  repair(store.device);
  expect_mended(store.device);
  EXPECT_EQ(values_of(store.device), (Values{{"key", "value of key"}}));
}

TEST(RepairDevice, WhatWouldNeedAGuessIsLeftAsItIs) {
  const auto expect_left = [](const std::function<void(Planted&)>& plant) {
    Planted store;
    plant(store);
    store.device.flip_bit(superblock_offsets(testing::kDeviceBytes)[1] + 100, 3);
    const std::uint64_t writes = store.device.counters().writes;
    const RepairReport report = repair(store.device);
    EXPECT_FALSE(report.after.opens);
    EXPECT_THAT(report.done, IsEmpty());
    EXPECT_EQ(store.device.counters().writes, writes) << text_of(report.after);
  };
  expect_left([](Planted& store) {
    store.add_file(2, "a", 10);
    store.add(Planted::file(3, 1, "b", {store.value(3, 10, "b")}));
    store.write();
  });
  expect_left([](Planted& store) {
    store.add(Planted::file(2, 50, "lost", {}));
    store.write();
  });
  expect_left([](Planted& store) {  // a hole in the log
    store.write_block({Planted::directory(ObjectId{2}, ObjectId::kRoot, "a")});
    store.write_block({Planted::directory(ObjectId{3}, ObjectId::kRoot, "b")});
    store.write_block(std::vector<Record>(), 2);
    store.write();
    store.device.flip_bit(store.superblock.geometry.journal_offset_bytes + kBlockSizeBytes + 70, 1);
  });
  expect_left([](Planted& store) {
    store.write();
    store.device.flip_bit(store.offset_of(0) + 20, 0);
  });
}

TEST(RepairDevice, AValueThatFailsIsLeftWhileTheRestIsMended) {
  Planted store;
  store.add_file(2, "good", 10);
  store.add_file(3, "bad", 11);
  store.write();
  store.device.flip_bit(store.offset_of(11), 0);
  store.device.flip_bit(superblock_offsets(testing::kDeviceBytes)[1] + 100, 3);
  const RepairReport report = repair(store.device);
  EXPECT_EQ(errors_of(report.before).size(), 2);
  EXPECT_THAT(errors_of(report.after), ::testing::ElementsAre(HasSubstr("'bad'")));
  EXPECT_FALSE(report.done.empty());
  EXPECT_THAT(errors_of(check(store.device)), ::testing::ElementsAre(HasSubstr("'bad'")));
}

// Loses power after each operation of the repair, and after each one of the repair of that.
TEST(RepairDevice, PowerLostAtAnyPointLosesNothing) {
  constexpr CrashMode kModes[] = {CrashMode::kNone, CrashMode::kAll, CrashMode::kRandom,
                                  CrashMode::kPrefix};
  for (const bool is_closed : {true, false}) {
    const auto damaged = used_device(is_closed);
    const Values before = values_of(*damaged);
    damage_manifest(*damaged);
    damaged->flip_bit(superblock_offsets(damaged->info().size_bytes)[0] + 100, 3);
    std::uint64_t cut = 0;
    for (bool is_over = false; !is_over; ++cut) {
      SCOPED_TRACE("cut " + std::to_string(cut));
      const auto device = damaged->process_crash();
      device->crash_after_operations(cut);
      const auto report = repair_device(*device, {});
      is_over = !device->is_crashed();
      const auto left = device->survivor(cut, kModes[cut % std::size(kModes)]);
      EXPECT_TRUE(check(*left).opens) << text_of(check(*left));
      ASSERT_EQ(values_of(*left), before);
      repair(*left);
      expect_mended(*left);
      ASSERT_EQ(values_of(*left), before);
    }
    EXPECT_GT(cut, 20U);
  }
}

}  // namespace
}  // namespace kvslot
