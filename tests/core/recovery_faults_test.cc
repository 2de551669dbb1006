// What opening makes of a device that fails, then or before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <cerrno>
#include <string>
#include <vector>

#include "core/superblocks.h"
#include "tests/support/check_report.h"
#include "tests/support/recovery_fixture.h"

namespace kvslot::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using RecoveryFaultsTest = RecoveryTest;

// A sector fails while a batch is written, and for good; the process dies after any operation.
TEST_F(RecoveryFaultsTest, ASectorThatFailsInABatchDoesNotKeepTheStoreFromOpening) {
  bool is_over = false;
  for (std::uint64_t step = 0; !is_over; ++step) {
    SCOPED_TRACE("the process died after operation " + std::to_string(step));
    open(make_device(16 * kMiB));
    put_durably("a");
    const auto break_sector = [](SimulatedDevice& device, std::uint64_t offset) {
      for (const OperationKind kind : {OperationKind::kRead, OperationKind::kWrite})
        device.add_fault({.kind = kind, .offset_bytes = offset, .size_bytes = 512});
    };
    const std::uint64_t bad = offset_of_slot(static_cast<std::uint32_t>(stat("slots_live")));
    break_sector(*device_, bad);
    const std::uint64_t before = device_->operation_count();
    device_->crash_after_operations(step);
    const auto stored = put_key(*volume_, "b", value_of('b' + 1, 5000));
    is_over = !device_->is_crashed();
    if (is_over) {
      EXPECT_TRUE(stored);
      EXPECT_EQ(stat("write_failures"), 1U) << "this test is about the slot that b gets first";
      EXPECT_GT(device_->operation_count() - before, 4U);
    }
    const std::shared_ptr<SimulatedDevice> dead = device_;
    for (const bool is_power_lost : {false, true}) {
      // After the first submission the block is there, and nothing shows that it is not to be.
      if (step >= 3 || is_power_lost) {
        auto left = is_power_lost ? dead->survivor(1, CrashMode::kNone) : dead->process_crash();
        break_sector(*left, bad);
        ASSERT_NO_FATAL_FAILURE(open(std::move(left)));
        expect_value("a");
        expect_slots_accounted(*volume_);
        put_durably("c");
        expect_value("c");
      }
      auto left = is_power_lost ? dead->survivor(1, CrashMode::kAll) : dead->process_crash();
      break_sector(*left, bad);
      ASSERT_TRUE(try_open(std::move(left), {.read_only = true}));
      expect_value("a");
      if (is_over) expect_value("b");
    }
  }
}

TEST_F(RecoveryFaultsTest, AnUnreadableValueOfTheLastBatchesIsShownAsAFaultWhereNothingIsWritten) {
  put_durably("a");
  put("b");
  put("c");
  const auto node = volume_->inspector().node(volume_->find("b")->node);
  const Fault fault{
      .kind = OperationKind::kRead,
      .offset_bytes = std::uint64_t{node->extents.front().device_block} * kBlockSizeBytes,
      .size_bytes = 512};
  const std::shared_ptr<SimulatedDevice> dead = device_;
  auto survivor = dead->survivor(1, CrashMode::kAll);
  survivor->add_fault(fault);
  const auto before = bytes_of_device(*survivor);
  const auto opened = try_open(std::move(survivor));
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().step, HasSubstr("mount with -o ro"));
  EXPECT_TRUE(bytes_of_device(*device_) == before);
  survivor = dead->survivor(1, CrashMode::kAll);
  survivor->add_fault(fault);
  ASSERT_TRUE(try_open(std::move(survivor), {.read_only = true}));
  EXPECT_THAT(keys(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(read_key(*volume_, "b").error().code, Errc::kIo);
  expect_value("a");
  expect_value("c");
  const auto faults = volume_->inspector().faults();
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(faults.front().key, "b");
  EXPECT_EQ(faults.front().os_errno, EIO);
}

TEST_F(RecoveryFaultsTest, ABadSectorOfTheJournalCostsNoMoreThanItHolds) {
  put_durably("a");
  const std::uint64_t of_b = volume_->inspector().journal().head_offset_bytes;
  put_durably("b");
  const std::uint64_t behind =
      volume_->inspector().journal().head_offset_bytes + 8 * kBlockSizeBytes;
  const std::shared_ptr<SimulatedDevice> dead = device_;
  const auto with_bad = [&](std::uint64_t offset) {
    auto survivor = dead->survivor(1, CrashMode::kNone);
    survivor->add_fault({.kind = OperationKind::kRead, .offset_bytes = offset, .size_bytes = 512});
    return survivor;
  };
  const std::uint64_t journal = volume_->geometry().journal_offset_bytes;
  open(with_bad(journal + behind));
  EXPECT_THAT(keys(), ElementsAre("a", "b")) << "nothing is there";
  const auto opened = try_open(with_bad(journal + of_b));
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().step, HasSubstr("mount with -o ro"));
  ASSERT_TRUE(try_open(with_bad(journal + of_b), {.read_only = true}));
  EXPECT_THAT(keys(), ElementsAre("a"));
  expect_value("a");
  EXPECT_EQ(volume_->inspector().faults().front().os_errno, EIO);
}

// What the search for a damaged log cannot read says nothing, unless nothing can be read any more.
TEST_F(RecoveryFaultsTest, ADeviceThatIsLostDuringTheOpeningIsNotTakenForASoundOne) {
  for (const bool has_tail : {true, false}) {
    open(make_device(16 * kMiB));
    put_durably("a");
    if (!has_tail) {
      ASSERT_TRUE(volume_->close());
    }
    const std::shared_ptr<SimulatedDevice> dead = device_;
    ASSERT_TRUE(try_open(dead->survivor(1, CrashMode::kAll), {.read_only = true}));
    const std::uint64_t steps = device_->operation_count();
    for (std::uint64_t step = 0; step < steps; ++step) {
      auto survivor = dead->survivor(1, CrashMode::kAll);
      survivor->crash_after_operations(step, ENODEV);
      const auto opened = try_open(std::move(survivor), {.read_only = true});
      ASSERT_FALSE(opened) << "the device was lost after operation " << step << " of " << steps;
      EXPECT_EQ(opened.error().os_errno, ENODEV) << opened.error().step;
    }
  }
}

// A store without room for a checkpoint goes on behind the end of a log that was cut, with a block
// that has no place before the end of the ring.
TEST_F(RecoveryFaultsTest, ALogThatWasCutGoesOnAtTheBeginningOfTheRing) {
  open(make_device(16 * kMiB, 1 << 20));
  put_durably("a", 10);
  const auto break_slots = [](SimulatedDevice& device, const Geometry& geometry) {
    device.add_fault({.kind = OperationKind::kWrite,
                      .offset_bytes = geometry.slots_offset_bytes,
                      .size_bytes = std::uint64_t{geometry.slot_count} * geometry.slot_size_bytes});
  };
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(volume_->checkpoint());  // it has all its slots in hand
  const Geometry geometry = volume_->geometry();
  while (volume_->space().free_blocks > geometry.blocks_per_slot() && !HasFailure())
    put_durably("ballast" + std::to_string(volume_->space().free_blocks), 10);
  const auto set_times = [&](TimestampNs time) {
    ASSERT_TRUE(volume_->set_attributes(
        volume_->find("a")->node,
        {.mode = 0600, .uid = 0, .gid = 0, .atime_ns = time, .mtime_ns = time, .ctime_ns = 1}));
  };
  const std::uint64_t last_block = geometry.journal_size_bytes - kBlockSizeBytes;
  while (volume_->inspector().journal().head_offset_bytes != last_block) {
    ASSERT_NO_FATAL_FAILURE(set_times(1));
    ASSERT_TRUE(volume_->flush());
  }
  put("b", 10);
  ASSERT_EQ(volume_->inspector().journal().head_offset_bytes, 0U) << "the last block of the ring";
  damage_value("b");
  auto survivor = device_->survivor(1, CrashMode::kAll);
  break_slots(*survivor, geometry);
  open(std::move(survivor));
  ASSERT_THAT(keys(), Not(Contains("b")));
  ASSERT_EQ(stat("checkpoints"), 0U) << "this test is about a store without room for one";
  for (TimestampNs time = 2; time <= 200; ++time) set_times(time);  // more than a block of 4096
  ASSERT_TRUE(volume_->flush());
  for (const CrashMode mode : {CrashMode::kNone, CrashMode::kAll}) {
    ASSERT_NO_FATAL_FAILURE(crash(mode));
    EXPECT_EQ(volume_->find("a")->attributes.mtime_ns, 200);
    expect_value("a", 10);
    expect_slots_accounted(*volume_);
  }
}

// A flush fails, the process dies, and the next one sees in the cache what the device lost and will
// not get by another flush. Power is lost at any point of its recovery, and after it.
TEST_F(RecoveryFaultsTest, WhatIsFoundAfterAFailedFlushIsThereAfterPowerLoss) {
  for (std::uint64_t seed = 1; seed <= 12 && !HasFailure(); ++seed) {
    SimulatedDeviceOptions options;
    options.seed = seed;
    open(make_device(16 * kMiB, 4096, options));
    put_durably("a");
    put_durably("old");
    ASSERT_TRUE(volume_->checkpoint());
    put("b");
    put("c", 30'000);
    ASSERT_TRUE(volume_->remove(NodeId::kRoot, "old", RemoveKind::kNotDirectory));
    // Of the batches, of the checkpoint's chunks, of its superblock.
    device_->add_fault({.kind = OperationKind::kFlush, .skip = seed % 3, .times = 1});
    if (volume_->flush()) {
      EXPECT_FALSE(volume_->checkpoint());
    }
    volume_.reset();
    const std::shared_ptr<SimulatedDevice> dead = device_;
    bool is_over = false;
    for (std::uint64_t step = 0; !is_over && !HasFailure(); ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", power lost after operation " +
                   std::to_string(step));
      auto successor = dead->process_crash();
      successor->crash_after_operations(step);
      std::vector<std::string> shown;
      const auto opened = try_open(std::move(successor));
      if (opened) shown = keys();
      is_over = opened && !device_->is_crashed();
      const std::shared_ptr<SimulatedDevice> left = device_;
      for (const CrashMode mode : {CrashMode::kNone, CrashMode::kRandom, CrashMode::kAll}) {
        ASSERT_NO_FATAL_FAILURE(open(left->survivor(step, mode)));
        expect_value("a");
        for (const std::string& key : keys()) expect_value(key, key == "c" ? 30'000 : 5000);
        expect_slots_accounted(*volume_);
        if (opened) {
          EXPECT_EQ(keys(), shown);
        }
      }
    }
  }
}

// Of the superblock that ends a checkpoint both copies fail, and one is there; all other free slots
// turn out to be bad, so that the next checkpoint needs those that it names, and power is lost
// then.
TEST_F(RecoveryFaultsTest, ASuperblockThatWasWrittenInPartNamesNoSlotsThatWereUsedAgain) {
  SimulatedDeviceOptions options;
  options.seed = 2;  // of a torn block something is there
  bool is_over = false;
  for (std::uint64_t step = 0; !is_over && !HasFailure(); ++step) {
    SCOPED_TRACE("power lost after operation " + std::to_string(step));
    open(make_device(16 * kMiB, 1 << 20, options));
    put_durably("a", 10);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(volume_->checkpoint());
    while (volume_->space().free_blocks > volume_->geometry().blocks_per_slot() && !HasFailure())
      put_durably("ballast" + std::to_string(volume_->space().free_blocks), 10);
    const auto offsets = superblock_offsets(device_->info().size_bytes);
    for (const std::size_t copy : {0, 2})
      device_->add_fault({.kind = OperationKind::kWrite,
                          .effect = copy == 0 ? WriteEffect::kTorn : WriteEffect::kRefused,
                          .offset_bytes = offsets[copy],
                          .size_bytes = kBlockSizeBytes});
    const std::uint64_t before = read_superblock(*device_)->sequence;
    EXPECT_FALSE(volume_->checkpoint());
    ASSERT_GT(read_superblock(*device_)->sequence, before)
        << "this test is about a copy that is there";
    device_->clear_faults();
    expect_slots_accounted(*volume_);
    std::uint32_t cursor = 0;
    for (const SlotRecord& record : volume_->inspector().slots(cursor)) {
      if (record.state != SlotState::kFree) continue;
      const std::uint64_t slot_bytes = volume_->geometry().slot_size_bytes;
      device_->add_fault(
          {.kind = OperationKind::kWrite,
           .offset_bytes = offset_of_slot(static_cast<std::uint32_t>(record.run.first)),
           .size_bytes = record.run.count * slot_bytes});
    }
    device_->crash_after_operations(step);
    static_cast<void>(volume_->checkpoint());
    is_over = !device_->is_crashed();
    const std::shared_ptr<SimulatedDevice> left = device_;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      auto survivor = left->survivor(seed, seed == 0 ? CrashMode::kAll : CrashMode::kRandom);
      EXPECT_THAT(errors_of(check(*survivor)), ::testing::IsEmpty()) << "seed " << seed;
      ASSERT_NO_FATAL_FAILURE(open(std::move(survivor)));
      expect_value("a", 10);
      expect_slots_accounted(*volume_);
    }
  }
}

// The second superblock that is written finds no space: copy 0 has it all the same, copy 2 not.
class ShortOfSpaceDevice final : public BorrowedDevice {
 public:
  ShortOfSpaceDevice(std::shared_ptr<Device> device, bool tells_the_truth)
      : BorrowedDevice(std::move(device)), tells_the_truth_(tells_the_truth) {}
  void run(std::span<IoRequest> requests) override {
    const auto offsets = superblock_offsets(info().size_bytes);
    for (IoRequest& request : requests) {
      const bool is_second = request.op == IoOp::kWrite &&
                             ((request.offset_bytes == offsets[0] && ++of_copy_0_ == 2) ||
                              (request.offset_bytes == offsets[2] && ++of_copy_2_ == 2));
      const bool is_done = !is_second || request.offset_bytes == offsets[0];
      if (is_done) BorrowedDevice::run({&request, 1});
      if (is_second && (!is_done || !tells_the_truth_)) request.error = ENOSPC;
    }
  }

 private:
  const bool tells_the_truth_;
  int of_copy_0_ = 0, of_copy_2_ = 0;
};

// The opening may succeed or not; what is acknowledged after it stays.
TEST_F(RecoveryFaultsTest, ASuperblockWithoutSpaceDuringTheOpeningCostsNothingThatIsPutLater) {
  for (int kind = 0; kind < 4; ++kind) {
    SCOPED_TRACE("kind " + std::to_string(kind));
    open(make_device(16 * kMiB));
    put_durably("a");
    const Geometry geometry = volume_->geometry();
    volume_.reset();
    device_ = device_->process_crash();
    // A slot of the checkpoint is bad, too, which a block of the journal says.
    if (kind >= 2)
      device_->add_fault(
          {.kind = OperationKind::kWrite,
           .skip = 1,  // the value is written again
           .times = 1,
           .offset_bytes = geometry.slots_offset_bytes,
           .size_bytes = std::uint64_t{geometry.slot_count} * geometry.slot_size_bytes});
    auto opened = Volume::open(std::make_unique<ShortOfSpaceDevice>(device_, kind % 2 == 0), {});
    if (!opened) opened = Volume::open(std::make_unique<BorrowedDevice>(device_), {});
    ASSERT_TRUE(opened) << opened.error().step;
    volume_ = std::move(*opened);
    EXPECT_EQ(stat("slots_quarantined"), kind >= 2 ? 1U : 0U);
    put_durably("b");
    for (const CrashMode mode : {CrashMode::kNone, CrashMode::kAll}) {
      ASSERT_NO_FATAL_FAILURE(crash(mode));
      EXPECT_THAT(keys(), ElementsAre("a", "b"));
      expect_value("a");
      expect_value("b");
      expect_slots_accounted(*volume_);
    }
  }
}

// A copy that takes no write, and that can be read or not, while power is lost at any point of an
// opening and two checkpoints.
TEST_F(RecoveryFaultsTest, ASuperblockCopyThatTakesNoWriteStopsNothing) {
  for (unsigned kind = 0; kind < 2 * kSuperblockCopies && !HasFailure(); ++kind) {
    const auto break_copy = [&](SimulatedDevice& device) {
      Fault fault{.kind = OperationKind::kWrite,
                  .offset_bytes = superblock_offsets(device.info().size_bytes)[kind / 2],
                  .size_bytes = kBlockSizeBytes};
      device.add_fault(fault);
      fault.kind = OperationKind::kRead;
      if (kind % 2 == 1) device.add_fault(fault);
    };
    open(make_device(16 * kMiB));
    put_durably("a");
    const std::shared_ptr<SimulatedDevice> dead = device_;
    bool is_over = false;
    for (std::uint64_t step = 0; !is_over && !HasFailure(); ++step) {
      SCOPED_TRACE("copy " + std::to_string(kind / 2) + (kind % 2 == 1 ? ", unreadable" : "") +
                   ", power lost after operation " + std::to_string(step));
      auto survivor = dead->survivor(1, CrashMode::kAll);
      break_copy(*survivor);
      survivor->crash_after_operations(step);
      bool has_b = false;
      if (try_open(std::move(survivor))) {
        has_b = put_key(*volume_, "b", value_of('b' + 1, 5000)) && volume_->checkpoint();
        is_over = has_b && volume_->checkpoint() && volume_->close();
        if (is_over) {
          EXPECT_EQ(volume_->inspector().faults().back().operation, "superblock");
        }
      }
      ASSERT_TRUE(is_over || device_->is_crashed()) << "the store was stopped by one copy";
      const std::shared_ptr<SimulatedDevice> left = device_;
      for (const CrashMode mode : {CrashMode::kNone, CrashMode::kRandom, CrashMode::kAll}) {
        auto next = left->survivor(step, mode);
        break_copy(*next);
        ASSERT_NO_FATAL_FAILURE(open(std::move(next)));
        expect_value("a");
        if (has_b) expect_value("b");
        expect_slots_accounted(*volume_);
      }
    }
  }
}

TEST_F(RecoveryFaultsTest, OnADeviceThatHasGrownTheCopiesAtTheOldEndCount) {
  const std::vector<std::byte> before = bytes_of_device(*device_);
  put_durably("a");
  ASSERT_TRUE(volume_->checkpoint());
  const std::vector<std::byte> now = bytes_of_device(*device_);
  const std::uint64_t newest = read_superblock(*device_)->sequence;
  auto grown = std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{.size_bytes = 20 * kMiB});
  grown->poke(0, now);
  for (const std::size_t copy : {0, 1}) {
    const std::uint64_t offset = superblock_offsets(device_->info().size_bytes)[copy];
    grown->poke(offset, ConstBytes(before).subspan(offset, kBlockSizeBytes));
  }
  EXPECT_EQ(read_superblock(*grown)->sequence, newest);
  open(std::move(grown));
  expect_value("a");
}

// A device whose transfers go through the page cache.
class CachedDevice final : public BorrowedDevice {
 public:
  explicit CachedDevice(std::shared_ptr<Device> device)
      : BorrowedDevice(std::move(device)), info_(BorrowedDevice::info()) {
    info_.is_direct = false;
  }
  [[nodiscard]] const DeviceInfo& info() const override { return info_; }

 private:
  DeviceInfo info_;
};

TEST_F(RecoveryFaultsTest, WhatIsReadFromTheCacheDoesNotProveThatItWasWritten) {
  put_durably("a");
  const std::shared_ptr<SimulatedDevice> dead = device_;
  const Geometry geometry = volume_->geometry();
  for (const std::uint64_t offset : {geometry.slots_offset_bytes, geometry.journal_offset_bytes}) {
    const auto left = [&] {
      std::shared_ptr<SimulatedDevice> device = dead->process_crash();
      device->add_fault(
          {.kind = OperationKind::kWrite, .offset_bytes = offset, .size_bytes = kBlockSizeBytes});
      return device;
    };
    EXPECT_TRUE(Volume::open(std::make_unique<BorrowedDevice>(left()), {}));
    const auto opened = Volume::open(std::make_unique<CachedDevice>(left()), {});
    ASSERT_FALSE(opened) << "offset " << offset;
    EXPECT_EQ(opened.error().os_errno, EIO);
    EXPECT_THAT(opened.error().step, HasSubstr("page cache only; mount with -o ro"));
    const auto shown = Volume::open(std::make_unique<CachedDevice>(left()), {.read_only = true});
    ASSERT_TRUE(shown);
    EXPECT_TRUE(read_key(**shown, "a") == value_of('a' + 1, 5000));
  }
}

}  // namespace
}  // namespace kvslot::testing
