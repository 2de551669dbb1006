// The checkpoint before stands in for a damaged newest one: for how long, and at what cost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <string>
#include <vector>

#include "core/superblocks.h"
#include "tests/support/check_report.h"
#include "tests/support/recovery_fixture.h"

namespace kvslot::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using FallbackCheckpointTest = RecoveryTest;

// As a bad sector in the place of the newest checkpoint does.
void damage_checkpoint(SimulatedDevice& device) {
  const Superblock superblock = *read_superblock(device);
  const Geometry& geometry = superblock.geometry;
  device.flip_bit(geometry.slots_offset_bytes +
                      std::uint64_t{superblock.current.manifest_slot} * geometry.slot_size_bytes +
                      50,
                  0);
}

// What is put after an opening does not take the place of the checkpoint that would stand in, whose
// log is of the opening before.
TEST_F(FallbackCheckpointTest, TheCheckpointBeforeStandsInAlsoAfterTheStoreWasOpenedAgain) {
  std::vector<std::string> all;
  const auto put_next = [&] {
    all.push_back(std::string(1, static_cast<char>('a' + all.size())));
    put_durably(all.back());
  };
  for (int life = 0; life < 4; ++life) {
    put_next();
    const std::uint64_t before = volume_->inspector().journal().current.sequence;
    ASSERT_TRUE(volume_->close());
    open(device_->survivor(1, CrashMode::kNone));
    EXPECT_EQ(stat("checkpoints"), 0U);
    EXPECT_EQ(volume_->inspector().journal().previous.sequence, before);
    expect_slots_accounted(*volume_);
  }
  for (int i = 0; i < 10; ++i) put_next();
  for (int round = 0; round < 3; ++round) {
    auto survivor = device_->survivor(1, CrashMode::kNone);
    EXPECT_THAT(errors_of(check(*survivor)), ::testing::IsEmpty());
    damage_checkpoint(*survivor);
    EXPECT_THAT(errors_of(check(*survivor)), ElementsAre(HasSubstr("can be recovered")));
    ASSERT_NO_FATAL_FAILURE(open(std::move(survivor))) << "round " << round;
    EXPECT_EQ(keys(), all);
    for (const std::string& key : all) expect_value(key);
    expect_slots_accounted(*volume_);
    put_next();
  }
}

// From the end of a checkpoint on, wherever power is lost in the next life, what was acknowledged
// is there without that checkpoint.
TEST_F(FallbackCheckpointTest, TheCheckpointBeforeStandsInWhereverTheNextLifeEnds) {
  put("a");
  ASSERT_TRUE(volume_->checkpoint());
  put("b");
  ASSERT_TRUE(volume_->close());
  const std::shared_ptr<SimulatedDevice> closed = device_;
  bool is_over = false;
  for (std::uint64_t step = 0; !is_over && !HasFailure(); ++step) {
    SCOPED_TRACE("power lost after operation " + std::to_string(step));
    std::vector<std::string> stored = {"a", "b"};
    auto device = closed->survivor(1, CrashMode::kNone);
    device->crash_after_operations(step);
    if (try_open(std::move(device)))
      for (const std::string key : {"c", "d"})
        if (put_key(*volume_, key, value_of(key[0] + 1, 5000)) && volume_->flush())
          stored.push_back(key);
    is_over = !device_->is_crashed();
    const std::shared_ptr<SimulatedDevice> left = device_;
    for (const CrashMode mode : {CrashMode::kNone, CrashMode::kRandom, CrashMode::kAll}) {
      auto survivor = left->survivor(step, mode);
      damage_checkpoint(*survivor);
      ASSERT_NO_FATAL_FAILURE(open(std::move(survivor)));
      EXPECT_THAT(keys(), ::testing::IsSupersetOf(stored));
      for (const std::string& key : keys()) expect_value(key);
      expect_slots_accounted(*volume_);
    }
  }
}

// The checkpoint before is larger than the next one will be; where space is short, what is more
// than that is a put's.
TEST_F(FallbackCheckpointTest, ACheckpointThatIsKeptTakesNoSpaceFromWhatIsPut) {
  const std::string stem(200, 'k');
  for (int i = 100; i < 400; ++i) put(stem + std::to_string(i), 0);
  ASSERT_TRUE(volume_->checkpoint());
  for (int i = 200; i < 400; ++i)
    ASSERT_TRUE(
        volume_->remove(NodeId::kRoot, stem + std::to_string(i), RemoveKind::kNotDirectory));
  ASSERT_TRUE(volume_->close());
  const Superblock superblock = *read_superblock(*device_);
  const std::shared_ptr<SimulatedDevice> closed = device_;
  std::vector<std::uint64_t> blocks_put;
  for (const bool is_kept : {true, false}) {
    auto device = closed->survivor(1, CrashMode::kNone);
    if (!is_kept) device->flip_bit(offset_of_slot(superblock.previous.manifest_slot) + 50, 0);
    open(std::move(device));
    const auto previous = [&] { return volume_->inspector().journal().previous.sequence; };
    EXPECT_EQ(previous(), is_kept ? superblock.previous.sequence : 0);
    // In few batches, so that no checkpoint comes between.
    blocks_put.push_back(0);
    std::size_t count = 0;
    for (const std::uint64_t blocks : {64, 1})
      while (put_key(*volume_, "v" + std::to_string(count),
                     value_of(count, blocks * kBlockSizeBytes))) {
        blocks_put.back() += blocks;
        ++count;
      }
    EXPECT_EQ(stat("checkpoints"), 0U) << "this test is about what is kept from the life before";
    EXPECT_EQ(previous(), 0U);
    expect_slots_accounted(*volume_);
    ASSERT_TRUE(volume_->close());
    ASSERT_NO_FATAL_FAILURE(open(device_->survivor(1, CrashMode::kNone)));
    EXPECT_EQ(keys().size(), 100 + count);
    expect_slots_accounted(*volume_);
  }
  EXPECT_EQ(blocks_put[0], blocks_put[1]);
}

TEST_F(FallbackCheckpointTest, ACheckpointBeforeWithoutItsLogIsSaidToBeGone) {
  put("a");
  ASSERT_TRUE(volume_->checkpoint());
  const std::uint64_t first = volume_->inspector().journal().current.sequence;
  const std::uint64_t of_b = volume_->inspector().journal().head_offset_bytes;
  put("b");
  ASSERT_TRUE(volume_->checkpoint());
  auto survivor = device_->survivor(1, CrashMode::kNone);
  const auto remark = HasSubstr("checkpoint " + std::to_string(first) + ", kept in case");
  EXPECT_THAT(text_of(check(*survivor)), Not(remark));
  survivor->flip_bit(volume_->geometry().journal_offset_bytes + of_b + 70, 0);
  EXPECT_THAT(text_of(check(*survivor)), remark);
  EXPECT_THAT(errors_of(check(*survivor)), ::testing::IsEmpty());
}

// From the end of a checkpoint until the log has gone round to where its own begins, which under
// steady writing is a few blocks before the next checkpoint.
TEST_F(FallbackCheckpointTest, StandsInUntilHalfOfTheRingIsUsed) {
  const auto checkpoints = [&] { return stat("checkpoints"); };
  const auto used_bytes = [&] { return volume_->inspector().journal().used_bytes; };
  const std::uint64_t half_bytes = volume_->geometry().journal_size_bytes / 2;
  while (checkpoints() < 2) put("a", 10);
  const auto is_there = [&] {
    return text_of(check(*device_->survivor(1, CrashMode::kAll))).find("kept in case") ==
           std::string::npos;
  };
  std::uint64_t lasted_bytes = 0;
  while (checkpoints() < 3) {
    const std::uint64_t used = used_bytes();
    if (used % (16 * kBlockSizeBytes) == 0 || used > half_bytes - 8 * kBlockSizeBytes)
      if (is_there()) lasted_bytes = used;
    put("a", 10);
  }
  EXPECT_GE(lasted_bytes, half_bytes - 8 * kBlockSizeBytes);
  EXPECT_TRUE(is_there()) << "the one before the next";
}

}  // namespace
}  // namespace kvslot::testing
