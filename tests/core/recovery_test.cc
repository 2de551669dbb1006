// What opening makes of what a crash left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/admin.h>
#include <kvslot/volume.h>

#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint_layout.h"
#include "core/put_changes.h"
#include "core/superblocks.h"
#include "tests/support/recovery_fixture.h"

namespace kvslot::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(RecoveryTest, TornCheckpointFallsBackToThePreviousOne) {
  for (const bool of_manifest : {true, false}) {
    open(make_device(16 * kMiB));
    put("a");
    ASSERT_TRUE(volume_->checkpoint());
    put("b");
    ASSERT_TRUE(volume_->remove(NodeId::kRoot, "a", RemoveKind::kNotDirectory));
    ASSERT_TRUE(volume_->checkpoint());
    put_durably("c");
    auto survivor = device_->survivor(1, CrashMode::kNone);
    const auto superblock = read_superblock(*survivor);
    ASSERT_TRUE(superblock);
    std::uint32_t slot = superblock->current.manifest_slot;
    if (!of_manifest) {
      std::vector<std::byte> block(kBlockSizeBytes);
      survivor->peek(offset_of_slot(slot), block);
      slot = decode_manifest(block, superblock->geometry.uuid)->entries.front().slot;
    }
    survivor->flip_bit(offset_of_slot(slot) + 100, 0);
    open(std::move(survivor));
    EXPECT_THAT(keys(), ElementsAre("b", "c"));
    expect_value("b");
    expect_value("c");
    expect_slots_accounted(*volume_);
    put_durably("d");
    crash();
    EXPECT_THAT(keys(), ElementsAre("b", "c", "d"));
  }
}

TEST_F(RecoveryTest, TwoDamagedCheckpointsAreAnErrorAndNothingIsWritten) {
  put("a");
  ASSERT_TRUE(volume_->checkpoint());
  put("b");
  ASSERT_TRUE(volume_->checkpoint());
  auto survivor = device_->survivor(1, CrashMode::kNone);
  const auto superblock = read_superblock(*survivor);
  survivor->flip_bit(offset_of_slot(superblock->current.manifest_slot) + 50, 0);
  survivor->flip_bit(offset_of_slot(superblock->previous.manifest_slot) + 50, 0);
  const auto before = bytes_of_device(*survivor);
  EXPECT_EQ(try_open(std::move(survivor)).error().code, Errc::kCorrupt);
  EXPECT_TRUE(bytes_of_device(*device_) == before);
}

TEST_F(RecoveryTest, AValueThatIsLostEndsTheLogBeforeItsRecord) {
  put_durably("a");
  put("b", 300'000);
  put("c");
  damage_value("b");
  crash(CrashMode::kAll);
  EXPECT_THAT(keys(), ElementsAre("a")) << "c was written after b and goes with it";
  expect_slots_accounted(*volume_);
}

// The log is cut before the second, whose block says that the first was flushed: that stays true.
TEST_F(RecoveryTest, AFlushedValueIsNotTakenForLostBecauseALaterOneIs) {
  put_durably("flushed");
  put("later");
  damage_value("flushed");
  damage_value("later");
  crash(CrashMode::kAll);
  EXPECT_THAT(keys(), ElementsAre("flushed"));
  EXPECT_EQ(read_key(*volume_, "flushed").error().code, Errc::kCorrupt);
  const auto report = check_device(*device_, {});
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->damaged);
}

TEST_F(RecoveryTest, BlocksOfAnEarlierLifeNeverReplay) {
  put_durably("a");
  put("b");
  put("c");
  put("d");
  damage_value("b");
  crash(CrashMode::kAll);
  EXPECT_THAT(keys(), ElementsAre("a"));
  put_durably("e");  // stands where the block of b stood, in front of those of c and d
  crash(CrashMode::kAll);
  EXPECT_THAT(keys(), ElementsAre("a", "e"));
  put_durably("f");
  crash(CrashMode::kAll);
  EXPECT_THAT(keys(), ElementsAre("a", "e", "f"));
}

TEST_F(RecoveryTest, ATornJournalBlockEndsTheLog) {
  put_durably("a");
  const std::uint64_t head = volume_->inspector().journal().head_offset_bytes;
  put("b");
  put("c");
  device_->flip_bit(volume_->geometry().journal_offset_bytes + head + 70, 0);
  crash(CrashMode::kAll);
  EXPECT_THAT(keys(), ElementsAre("a"));
}

TEST_F(RecoveryTest, ADurableRemovalMayLeaveItsSlotsToOthersBeforeTheNextCheckpoint) {
  const std::uint64_t room = volume_->space().free_blocks - 60;
  put_durably("ballast", room * kBlockSizeBytes);
  for (int round = 0; round < 12; ++round) {
    const std::string key(1, static_cast<char>('b' + round));
    put_durably(key, 20 * kBlockSizeBytes);
    if (round == 0) continue;
    const std::string before(1, static_cast<char>('b' + round - 1));
    ASSERT_TRUE(volume_->remove(NodeId::kRoot, before, RemoveKind::kNotDirectory));
    ASSERT_TRUE(volume_->flush());
  }
  ASSERT_EQ(stat("checkpoints"), 0U) << "the journal still names slots that were used again";
  for (const CrashMode mode : {CrashMode::kNone, CrashMode::kAll}) {
    crash(mode);
    EXPECT_THAT(keys(), ElementsAre("ballast", "m"));
    expect_value("m", 20 * kBlockSizeBytes);
    expect_slots_accounted(*volume_);
  }
}

TEST_F(RecoveryTest, EverySlotCanBeUsedAfterACrashBetweenReserveAndCommit) {
  put_durably("a");
  ASSERT_TRUE(volume_->reserve_slots(500));
  put("lost", 1 * kMiB);
  device_->crash_after_operations(1);
  ContentChange change = change_for_put(*volume_, "cut", bytes_of(std::string(100'000, 'c')));
  volume_->commit({&change, 1});
  crash();
  EXPECT_THAT(keys(), ElementsAre("a"));
  EXPECT_EQ(stat("slots_live"), 2U);
  const std::uint64_t room = volume_->space().free_blocks - 8;
  put_durably("rest", room * kBlockSizeBytes);
  crash();
  EXPECT_THAT(keys(), ElementsAre("a", "rest"));
}

TEST_F(RecoveryTest, AfterACleanCloseNothingIsReplayedAndNothingIsRewritten) {
  put("a");
  ASSERT_TRUE(volume_->close());
  EXPECT_TRUE(read_store_info(*device_)->closed);
  crash();
  EXPECT_FALSE(read_store_info(*device_)->closed) << "in use";
  EXPECT_EQ(stat("checkpoints"), 0U);
  EXPECT_THAT(keys(), ElementsAre("a"));
  expect_value("a");
}

TEST_F(RecoveryTest, ObjectIdsAndStampsAreNeverUsedAgain) {
  std::uint64_t newest_id = 0;
  std::uint64_t newest_stamp = 0;
  for (int life = 0; life < 6; ++life) {
    put("lost", 1000);
    const auto lost = volume_->inspector().node(volume_->find("lost")->node);
    ASSERT_TRUE(lost);
    EXPECT_GT(static_cast<std::uint64_t>(lost->id), newest_id) << "life " << life;
    EXPECT_GT(lost->extents.front().stamp, newest_stamp) << "life " << life;
    newest_id = static_cast<std::uint64_t>(lost->id);
    newest_stamp = lost->extents.front().stamp;
    const std::uint64_t epoch = volume_->inspector().journal().epoch;
    if (life % 2 == 1) {
      ASSERT_TRUE(volume_->remove(NodeId::kRoot, "lost", RemoveKind::kNotDirectory));
      ASSERT_TRUE(volume_->close());
    }
    crash();
    EXPECT_THAT(keys(), IsEmpty());
    EXPECT_NE(volume_->inspector().journal().epoch, epoch);
  }
}

TEST_F(RecoveryTest, ReadOnlyOpeningShowsEverythingAndWritesNothing) {
  put("a");
  ASSERT_TRUE(volume_->checkpoint());
  put_durably("b");
  auto survivor = device_->survivor(1, CrashMode::kNone);
  const auto before = bytes_of_device(*survivor);
  ASSERT_TRUE(try_open(std::move(survivor), {.read_only = true}));
  EXPECT_THAT(keys(), ElementsAre("a", "b"));
  expect_value("b");
  EXPECT_TRUE(volume_->is_read_only());
  EXPECT_EQ(put_key(*volume_, "c", "x").error().code, Errc::kReadOnly);
  EXPECT_EQ(volume_->remove(NodeId::kRoot, "a", RemoveKind::kNotDirectory).error().code,
            Errc::kReadOnly);
  EXPECT_EQ(volume_->create(NodeId::kRoot, "d", NodeKind::kDirectory, {}).error().code,
            Errc::kReadOnly);
  EXPECT_EQ(volume_->checkpoint().error().code, Errc::kReadOnly);
  EXPECT_TRUE(volume_->close());
  EXPECT_TRUE(bytes_of_device(*device_) == before);
  EXPECT_EQ(device_->counters().writes, 0U);
  EXPECT_EQ(device_->counters().flushes, 0U);
}

TEST_F(RecoveryTest, AnyThreeSuperblockCopiesMayBeLost) {
  for (std::size_t kept = 0; kept < kSuperblockCopies; ++kept) {
    put_durably("a");  // all four copies are durable
    auto survivor = device_->survivor(1, CrashMode::kNone);
    const auto offsets = superblock_offsets(survivor->info().size_bytes);
    for (std::size_t copy = 0; copy < kSuperblockCopies; ++copy)
      if (copy != kept) survivor->flip_bit(offsets[copy] + 200, 1);
    const auto info = read_store_info(*survivor);
    ASSERT_TRUE(info) << info.error().step;
    open(std::move(survivor));
    EXPECT_THAT(keys(), ElementsAre("a")) << "copy " << kept;
  }
}

TEST_F(RecoveryTest, ADeviceThatShrankIsRefused) {
  open(make_device(20 * kMiB));
  put_durably("a");
  auto shrunk = std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{.size_bytes = 19 * kMiB});
  std::vector<std::byte> bytes(shrunk->info().size_bytes);
  device_->peek(0, bytes);
  shrunk->poke(0, bytes);
  const auto opened = try_open(std::move(shrunk));
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().step, ::testing::HasSubstr("cut off"));
}

TEST_F(RecoveryTest, AttributesSymlinksAndXattrsSurviveFromJournalAndCheckpoint) {
  put("file");
  const NodeId node = volume_->find("file")->node;
  ASSERT_TRUE(volume_->set_attributes(
      node, {.mode = 0751, .uid = 7, .gid = 8, .atime_ns = -5, .mtime_ns = 6, .ctime_ns = 7}));
  ASSERT_TRUE(volume_->set_xattr(node, "user.a", "1", Volume::XattrMode::kAny));
  ASSERT_TRUE(volume_->create(NodeId::kRoot, "link", NodeKind::kSymlink, {}, "target/of it"));
  ASSERT_TRUE(volume_->flush());
  crash();
  for (const bool from_checkpoint : {false, true}) {
    if (from_checkpoint) {
      ASSERT_TRUE(volume_->close());
      crash();
    }
    const auto info = volume_->find("file");
    ASSERT_TRUE(info);
    EXPECT_EQ(info->attributes.mode, 0751U);
    EXPECT_EQ(info->attributes.uid, 7U);
    EXPECT_EQ(info->attributes.gid, 8U);
    EXPECT_EQ(info->attributes.atime_ns, -5);
    EXPECT_EQ(info->attributes.mtime_ns, 6);
    EXPECT_EQ(volume_->xattr(info->node, "user.a"), "1");
    EXPECT_EQ(volume_->symlink_target(volume_->find("link")->node), "target/of it");
  }
}

TEST_F(RecoveryTest, AJournalThatWentRoundManyTimesStillRecovers) {
  for (int round = 0; round < 40; ++round) {
    std::vector<ContentChange> changes;
    std::vector<std::string> names;
    for (int i = 0; i < 200; ++i) names.push_back("k" + std::to_string(i));
    for (const std::string& name : names)
      changes.push_back(change_for_put(*volume_, name, bytes_of(std::to_string(round))));
    volume_->commit(changes);
    for (const ContentChange& change : changes) ASSERT_TRUE(change.result);
  }
  EXPECT_GT(stat("checkpoints"), 0U) << "the journal is too small for all this";
  ASSERT_TRUE(volume_->flush());
  crash();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(read_key(*volume_, "k" + std::to_string(i)), "39");
}

// A process dies, its successor recovers what is in the device's cache only, and power is lost at
// any point of that recovery, so that the successor's writes survive and the older ones do not.
class RecoveryFromCacheTest : public RecoveryTest {
 protected:
  // Opens `dead` after kill -9, loses power after `step` operations and opens what is left.
  // False: the first of the two openings was over before.
  bool recover_twice(const SimulatedDevice& dead, std::uint64_t step) {
    device_ = dead.process_crash();
    const std::uint64_t first_new = device_->pending_writes().size();
    device_->crash_after_operations(step);
    const bool is_over = Volume::open(std::make_unique<BorrowedDevice>(device_), {}).has_value();
    const auto pending = device_->pending_writes();
    open(device_->survivor(
        [&](std::size_t write, std::size_t) { return pending[write].number >= first_new; }));
    return !is_over;
  }
};

TEST_F(RecoveryFromCacheTest, SlotsThatAnUnflushedBlockFreedAreNotWrittenBeforeItIsDurable) {
  const std::size_t ballast_bytes = (volume_->space().free_blocks - 40) * kBlockSizeBytes;
  put_durably("ballast", ballast_bytes);
  const std::vector<std::string> removed{"a", "b", "c", "d", "e", "f"};
  for (const std::string& key : removed) put_durably(key, 5 * kBlockSizeBytes);
  ASSERT_TRUE(volume_->checkpoint());
  ASSERT_TRUE(volume_->flush());
  for (const std::string& key : removed)
    ASSERT_TRUE(volume_->remove(NodeId::kRoot, key, RemoveKind::kNotDirectory));
  volume_->commit({});  // published, not durable: the next checkpoint goes to these slots
  volume_.reset();
  const std::shared_ptr<SimulatedDevice> dead = device_;
  for (std::uint64_t step = 0; recover_twice(*dead, step) && !HasFailure(); ++step) {
    SCOPED_TRACE("power lost after operation " + std::to_string(step) + " of the recovery");
    expect_value("ballast", ballast_bytes);
    for (const std::string& key : keys())
      if (key != "ballast") expect_value(key, 5 * kBlockSizeBytes);
    expect_slots_accounted(*volume_);
  }
}

// ---- What a crash must not leak, repairs that are cut, and stores made over others.

TEST_F(RecoveryTest, SlotsThatWerePlacedOrPromisedDuringACheckpointAreFreeAfterACrash) {
  put_durably("a");
  const auto file = volume_->create(NodeId::kRoot, "pieces", NodeKind::kFile, {}, {}, true);
  ContentChange piece;
  piece.node = file->node;
  piece.place_only = true;
  piece.writes.push_back({0, 100'000, Buffer::from_heap(100'000)});
  volume_->commit({&piece, 1});
  ASSERT_TRUE(piece.result);
  ASSERT_TRUE(volume_->reserve_slots(500));
  ASSERT_TRUE(volume_->checkpoint());
  for (const CrashMode mode : {CrashMode::kNone, CrashMode::kAll}) {
    crash(mode);
    EXPECT_THAT(keys(), ElementsAre("a"));
    EXPECT_EQ(stat("slots_live"), 2U);
    expect_slots_accounted(*volume_);
  }
  put_durably("rest", (volume_->space().free_blocks - 8) * kBlockSizeBytes);
}

TEST_F(RecoveryTest, PowerLossWhileTheLastGoodSuperblockCopyIsRenewedLosesNothing) {
  put_durably("a");
  ASSERT_TRUE(volume_->close());
  const auto offsets = superblock_offsets(device_->info().size_bytes);
  const std::shared_ptr<SimulatedDevice> closed = device_;
  for (std::size_t kept = 0; kept < kSuperblockCopies; ++kept) {
    bool is_over = false;
    for (std::uint64_t step = 0; !is_over; ++step) {
      SCOPED_TRACE("copy " + std::to_string(kept) + ", operation " + std::to_string(step));
      const std::shared_ptr<SimulatedDevice> device = closed->survivor(1, CrashMode::kAll);
      for (std::size_t copy = 0; copy < kSuperblockCopies; ++copy)
        if (copy != kept) device->flip_bit(offsets[copy] + 200, 1);
      device->crash_after_operations(step);
      is_over = Volume::open(std::make_unique<BorrowedDevice>(device), {}).has_value();
      ASSERT_TRUE(is_over || device->is_crashed());
      for (std::size_t subset = 0; subset < 16; ++subset) {  // of the copies being written
        ASSERT_NO_FATAL_FAILURE(open(device->survivor([&](std::size_t write, std::size_t sector) {
          return (subset >> (write % 4) & 1) != 0 && (sector == 0 || subset % 2 == 0);
        })));
        ASSERT_THAT(keys(), ElementsAre("a"));
      }
    }
  }
}

// The numbers of the new store start afresh; the higher ones of the old must not win.
TEST_F(RecoveryTest, AStoreMadeOverAnOldOneIsTheNewOne) {
  put_durably("old");
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(volume_->checkpoint());
  ASSERT_TRUE(volume_->close());
  auto device = device_->survivor(1, CrashMode::kNone);
  ASSERT_TRUE(
      format_device(*device, {.slot_size_bytes = 4096, .label = "new", .force = true, .seed = 99}));
  open(std::move(device));
  EXPECT_THAT(keys(), IsEmpty());
  put_durably("new");
  for (const bool checkpointed : {false, true}) {
    if (checkpointed) {
      ASSERT_TRUE(volume_->checkpoint());
    }
    crash();
    EXPECT_THAT(keys(), ElementsAre("new"));
    expect_slots_accounted(*volume_);
  }
}

TEST_F(RecoveryTest, AFormatThatIsCutLeavesAStoreOrNone) {
  bool is_over = false;
  for (std::uint64_t step = 0; !is_over; ++step) {
    SimulatedDevice device({.size_bytes = 16 * kMiB});
    device.crash_after_operations(step);
    is_over =
        format_device(device, {.slot_size_bytes = 4096, .label = "cut", .seed = 5}).has_value();
    ASSERT_TRUE(is_over || device.is_crashed());
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const auto opened = try_open(device.survivor(seed, CrashMode::kRandom));
      if (opened) {
        EXPECT_THAT(keys(), IsEmpty());
        put_durably("a");
      } else {
        EXPECT_FALSE(is_over);
        EXPECT_EQ(opened.error().code, Errc::kCorrupt) << opened.error().step;
      }
    }
  }
}

// A put is on its way to the device when its key is removed.
TEST_F(RecoveryTest, ARemovalDuringAPutOfItsKeyLeavesNothingOfEither) {
  for (const bool is_new : {true, false}) {
    open(make_device(16 * kMiB));
    if (!is_new) put_durably("key", 9000);
    device_->hold(OperationKind::kWrite);
    std::thread putter([&] { static_cast<void>(put_key(*volume_, "key", "value")); });
    device_->wait_until_held(1);
    EXPECT_TRUE(volume_->remove(NodeId::kRoot, "key", RemoveKind::kNotDirectory));
    device_->release();
    putter.join();
    EXPECT_THAT(keys(), IsEmpty());
    ASSERT_TRUE(volume_->flush());
    expect_slots_accounted(*volume_);
    EXPECT_EQ(stat("slots_live"), 0U);
    for (const CrashMode mode : {CrashMode::kAll, CrashMode::kNone}) {
      crash(mode);
      EXPECT_THAT(keys(), IsEmpty());
      EXPECT_EQ(stat("slots_live"), 0U);
      expect_slots_accounted(*volume_);
    }
  }
}

}  // namespace
}  // namespace kvslot::testing
