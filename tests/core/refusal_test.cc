// What is said, and what is kept, when the journal has no room, a place is bad, or two callers want
// different things of one key.
#include <gtest/gtest.h>
#include <kvslot/admin.h>
#include <kvslot/store.h>
#include <kvslot/volume.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "core/put_changes.h"
#include "core/records.h"
#include "tests/support/volume_fixture.h"

namespace kvslot::testing {
namespace {

class RefusalTest : public VolumeTest {
 protected:
  RefusalTest() : VolumeTest(64 * kMiB) {}

  Result<void> make_directory(std::string_view name) {
    const auto made = volume_->create(NodeId::kRoot, name, NodeKind::kDirectory, {});
    return made ? Result<void>() : fail(made);
  }
  [[nodiscard]] std::uint64_t journal_end() const {
    return volume_->geometry().journal_offset_bytes + volume_->geometry().journal_size_bytes;
  }
  void refuse_journal(int error) {
    device_->add_fault({.kind = OperationKind::kWrite,
                        .error = error,
                        .offset_bytes = volume_->geometry().journal_offset_bytes,
                        .size_bytes = volume_->geometry().journal_size_bytes});
  }
};

TEST_F(RefusalTest, ABarrierFailsWhileTheJournalHasNoRoomAndHoldsAfterwards) {
  refuse_journal(ENOSPC);
  ASSERT_TRUE(make_directory("d"));
  EXPECT_EQ(volume_->flush().error().code, Errc::kNoSpace);
  EXPECT_FALSE(volume_->checkpoint()) << "its image would name what no journal holds";
  EXPECT_FALSE(volume_->is_read_only());
  device_->clear_faults();
  EXPECT_TRUE(volume_->flush());
  crash();
  EXPECT_TRUE(volume_->find("d"));
}

TEST_F(RefusalTest, ClosingSaysThatWhatWasRecordedIsNotOnTheDevice) {
  refuse_journal(ENOSPC);
  ASSERT_TRUE(make_directory("d"));
  EXPECT_FALSE(volume_->close());
}

TEST_F(RefusalTest, ClosingAStoreThatStoppedSaysSo) {
  ASSERT_TRUE(put_key(*volume_, "key", "value"));
  device_->add_fault({.kind = OperationKind::kFlush, .times = 1});
  EXPECT_FALSE(volume_->flush());
  EXPECT_EQ(volume_->close().error().code, Errc::kReadOnly);
}

TEST_F(RefusalTest, AnOversizedChangeFailsAloneAndABarrierBehindItHolds) {
  ASSERT_TRUE(put_key(*volume_, "before", "x"));
  ASSERT_TRUE(make_directory("d"));
  ContentChange change = change_for_put(*volume_, "big", bytes_of(std::string(48 << 20, 'b')));
  const std::uint64_t sequence = volume_->commit({&change, 1});
  EXPECT_EQ(change.result.error().code, Errc::kTooLarge);
  ASSERT_TRUE(volume_->flush_until(sequence));
  crash();
  EXPECT_EQ(read_key(*volume_, "before"), "x");
  EXPECT_TRUE(volume_->find("d"));
  EXPECT_FALSE(volume_->find("big"));
}

TEST_F(RefusalTest, APutThatReplacesIsWrittenWhateverJoinsIt) {
  ASSERT_TRUE(put_key(*volume_, "key", "old"));
  std::vector<ContentChange> changes;
  changes.push_back(change_for_put(*volume_, "key", bytes_of("new")));
  changes.push_back(change_for_put(*volume_, "key", bytes_of("kept")));
  changes.back().keep_existing = true;
  volume_->commit(changes);
  EXPECT_TRUE(changes[0].result);
  EXPECT_TRUE(changes[1].result);
  EXPECT_EQ(read_key(*volume_, "key"), "new");
}

TEST_F(RefusalTest, OfPutsThatKeepTheFirstIsStored) {
  std::vector<ContentChange> changes;
  for (const char* value : {"first", "second"}) {
    changes.push_back(change_for_put(*volume_, "key", bytes_of(value)));
    changes.back().keep_existing = true;
  }
  volume_->commit(changes);
  EXPECT_EQ(read_key(*volume_, "key"), "first");
}

TEST_F(RefusalTest, AttributesThatDoNotFitOneBlockLeaveInSeveral) {
  constexpr int kFiles = 20;
  std::vector<ContentChange> changes(kFiles);
  for (int i = 0; i < kFiles; ++i) {
    const auto file = volume_->create(NodeId::kRoot, "f" + std::to_string(i), NodeKind::kFile, {});
    ASSERT_TRUE(file);
    ASSERT_TRUE(volume_->set_xattr(file->node, "user.a", std::string(60'000, 'a'),
                                   Volume::XattrMode::kAny));
    changes[static_cast<std::size_t>(i)].node = file->node;
    changes[static_cast<std::size_t>(i)].whole = true;
  }
  ASSERT_TRUE(volume_->flush_until(volume_->commit(changes)));
  for (const ContentChange& change : changes) EXPECT_TRUE(change.result);
  crash();
  for (int i = 0; i < kFiles; ++i) {
    const auto file = volume_->find("f" + std::to_string(i));
    ASSERT_TRUE(file);
    EXPECT_EQ(volume_->xattr(file->node, "user.a")->size(), 60'000U);
  }
}

TEST_F(RefusalTest, AFileInManyPiecesThatFillsTheStoreCanBeCheckpointedAndRemoved) {
  const auto file = volume_->create(NodeId::kRoot, "big", NodeKind::kFile, {});
  ASSERT_TRUE(file);
  std::vector<PlacedWindow> placed;
  std::uint32_t window = 0;
  const auto place = [&] {  // one slot a window: the most pieces for the space
    if (!volume_->reserve_slots(1)) return false;
    ContentChange change;
    change.node = file->node;
    change.place_only = true;
    change.reserved_slots = 1;
    change.writes.push_back(
        {.window = window++, .size_bytes = 4096, .data = Buffer::from_heap(4096)});
    volume_->commit({&change, 1});
    for (PlacedWindow& one : change.placed) placed.push_back(std::move(one));
    return change.result.has_value();
  };
  while (place()) {
  }
  ContentChange change;
  change.node = file->node;
  change.whole = true;
  change.size_bytes = std::uint64_t{window} * volume_->geometry().window_size_bytes();
  change.placed = std::move(placed);
  // More pieces than one block holds are refused; what then counts is that the store lives on.
  volume_->commit({&change, 1});
  if (!change.result) volume_->discard_placed(change.placed);
  EXPECT_TRUE(volume_->checkpoint());
  ASSERT_TRUE(volume_->flush());
  crash();
  ASSERT_TRUE(volume_->remove(NodeId::kRoot, "big", RemoveKind::kNotDirectory) || !change.result);
  EXPECT_TRUE(volume_->close());
}

TEST_F(RefusalTest, AFullStoreTakesWhatNeedsNoSpace) {
  ASSERT_TRUE(put_key(*volume_, "key", "value"));
  while (volume_->reserve_slots(1)) {
  }
  ContentChange change;
  change.node = volume_->find("key")->node;
  change.whole = true;
  volume_->commit({&change, 1});
  EXPECT_TRUE(change.result) << change.result.error().step;
  EXPECT_EQ(read_key(*volume_, "key"), "");
}

TEST_F(RefusalTest, ACheckpointGoesAroundBadSlots) {
  ASSERT_TRUE(put_key(*volume_, "key", "value"));
  const Geometry geometry = volume_->geometry();
  for (const std::uint32_t slot : {1U, 3U})  // slot 0 is the value's
    device_->add_fault({.kind = OperationKind::kWrite,
                        .offset_bytes = geometry.slots_offset_bytes +
                                        std::uint64_t{slot} * geometry.slot_size_bytes,
                        .size_bytes = geometry.slot_size_bytes});
  EXPECT_TRUE(volume_->checkpoint());
  EXPECT_EQ(stat_of(*volume_, "slots_quarantined"), 2U);
  expect_slots_accounted(*volume_);
  crash();
  EXPECT_EQ(read_key(*volume_, "key"), "value");
  EXPECT_EQ(stat_of(*volume_, "slots_quarantined"), 2U);
}

TEST_F(RefusalTest, RecoveryReadsAgainBeforeItCutsTheLog) {
  ASSERT_TRUE(put_key(*volume_, "key", "value"));
  ASSERT_TRUE(volume_->flush());
  std::shared_ptr<SimulatedDevice> survivor = device_->survivor(7, CrashMode::kNone);
  const Geometry geometry = volume_->geometry();
  survivor->add_fault({.kind = OperationKind::kRead,
                       .times = 1,
                       .error = 0,
                       .flips_bit = true,
                       .offset_bytes = geometry.slots_offset_bytes,
                       .size_bytes = geometry.slot_size_bytes});
  auto volume = Volume::open(std::make_unique<BorrowedDevice>(survivor), {.seed = 2});
  ASSERT_TRUE(volume);
  EXPECT_EQ(read_key(**volume, "key"), "value");
}

TEST_F(RefusalTest, RecoveryDoesNotTakeAReadErrorForAValueThatWasNeverWritten) {
  ASSERT_TRUE(put_key(*volume_, "key", "value"));
  ASSERT_TRUE(volume_->flush());
  std::shared_ptr<SimulatedDevice> survivor = device_->survivor(7, CrashMode::kNone);
  const Geometry geometry = volume_->geometry();
  survivor->add_fault({.kind = OperationKind::kRead,
                       .offset_bytes = geometry.slots_offset_bytes,
                       .size_bytes = geometry.slot_size_bytes});
  const auto refused = Volume::open(std::make_unique<BorrowedDevice>(survivor), {.seed = 2});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kIo);
  survivor->clear_faults();
  auto volume = Volume::open(std::make_unique<BorrowedDevice>(survivor), {.seed = 3});
  ASSERT_TRUE(volume) << "nothing was changed by the attempt";
  EXPECT_EQ(read_key(**volume, "key"), "value");
}

TEST_F(RefusalTest, ADamagedJournalBlockThatWasDurableIsNotTakenForTheEndOfTheLog) {
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(put_key(*volume_, "key" + std::to_string(i), "value"));
    ASSERT_TRUE(volume_->flush());
  }
  std::shared_ptr<SimulatedDevice> survivor = device_->survivor(7, CrashMode::kNone);
  survivor->flip_bit(volume_->geometry().journal_offset_bytes + 2 * kBlockSizeBytes + 50, 3);
  const auto refused = Volume::open(std::make_unique<BorrowedDevice>(survivor), {.seed = 2});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kCorrupt);
  const auto report = check_device(*survivor, {});
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->damaged);
  auto volume =
      Volume::open(std::make_unique<BorrowedDevice>(survivor), {.read_only = true, .seed = 3});
  ASSERT_TRUE(volume) << "what is left can be read";
  EXPECT_EQ(read_key(**volume, "key1"), "value");
  EXPECT_EQ((*volume)->inspector().faults().size(), 1U);
}

TEST(Records, IdentitiesOverTheirBitsAreCorrupt) {
  SetNode set;
  set.image.object = ObjectId{std::uint64_t{1} << 48};
  set.image.parent = ObjectId::kRoot;
  set.image.name = "n";
  std::vector<std::byte> bytes;
  encode_record(bytes, set);
  ByteReader in(bytes);
  EXPECT_FALSE(decode_record(in));
}

TEST(StoreHolds, AValueLongerThanItsBufferIsNeverCutOff) {
  StoreHarness harness;
  const std::string value = value_of(1, 5000);
  ASSERT_TRUE(harness.store().put("key", bytes_of(value)));
  std::vector<std::byte> small(4999), fitting(5000);
  const std::vector<std::string_view> keys = {"key", "key"};
  const std::vector<Bytes> targets = {small, fitting};
  const auto sizes = harness.store().get_many_into(keys, targets);
  EXPECT_EQ(sizes[0].error().code, Errc::kTooLarge);
  EXPECT_EQ(sizes[1], 5000U);
}

}  // namespace
}  // namespace kvslot::testing
