// Writes that fail: what is retried, who fails, and what nobody may be told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "core/put_changes.h"
#include "tests/support/volume_fixture.h"

namespace kvslot::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CommitTest : public VolumeTest {
 protected:
  // Puts k0, k1, ... in one commit, one slot each; on a fresh store ki goes to slot i.
  std::vector<std::string> put_many(std::size_t count) {
    std::vector<std::string> keys;
    for (std::size_t i = 0; i < count; ++i) keys.push_back("k" + std::to_string(i));
    std::vector<ContentChange> changes;
    for (std::size_t i = 0; i < count; ++i)
      changes.push_back(change_for_put(*volume_, keys[i], bytes_of(value_of(i, 1000))));
    volume_->commit(changes);
    std::vector<Result<void>> results;
    for (const ContentChange& change : changes) results.push_back(change.result);
    return words_of(results);
  }
  // Keys among k0, k1, ... whose value is not what put_many stored.
  std::vector<std::size_t> wrong_keys(std::size_t count) {
    std::vector<std::size_t> wrong;
    for (std::size_t i = 0; i < count; ++i)
      if (read_key(*volume_, "k" + std::to_string(i)) != value_of(i, 1000)) wrong.push_back(i);
    return wrong;
  }
  void break_slot(std::uint32_t slot, int error = EIO) {
    const Geometry& geometry = volume_->geometry();
    device_->add_fault({.kind = OperationKind::kWrite,
                        .error = error,
                        .offset_bytes = geometry.slots_offset_bytes +
                                        std::uint64_t{slot} * geometry.slot_size_bytes,
                        .size_bytes = geometry.slot_size_bytes});
  }
  void break_journal(std::uint64_t times) {
    const Geometry& geometry = volume_->geometry();
    device_->add_fault({.kind = OperationKind::kWrite,
                        .times = times,
                        .offset_bytes = geometry.journal_offset_bytes,
                        .size_bytes = geometry.journal_size_bytes});
  }
};

TEST_F(CommitTest, ABadSlotIsQuarantinedAndItsValueWrittenElsewhere) {
  for (const std::size_t bad : {0U, 63U, 127U}) {
    open(make_device(16 * kMiB));
    break_slot(static_cast<std::uint32_t>(bad));
    EXPECT_THAT(put_many(128), Each("ok")) << "slot " << bad;
    EXPECT_THAT(wrong_keys(128), IsEmpty());
    EXPECT_EQ(stat("slots_quarantined"), 1U);
    EXPECT_EQ(stat("rewrites"), 1U);
    ASSERT_THAT(volume_->inspector().faults(), SizeIs(1));
    EXPECT_EQ(volume_->inspector().faults()[0].key, "k" + std::to_string(bad));
    EXPECT_EQ(volume_->inspector().faults()[0].os_errno, EIO);
    expect_slots_accounted(*volume_);
    ASSERT_TRUE(volume_->flush());
    crash();
    EXPECT_THAT(wrong_keys(128), IsEmpty());
    EXPECT_EQ(stat("slots_quarantined"), 1U) << "remembered by the journal";
    ASSERT_TRUE(volume_->checkpoint());
    ASSERT_TRUE(volume_->close());
    crash();
    EXPECT_EQ(stat("slots_quarantined"), 1U) << "remembered by the checkpoint";
  }
}

TEST_F(CommitTest, AKeyThatFailsTwiceFailsAlone) {
  break_slot(3);
  break_slot(10);  // where the second attempt goes
  std::vector<std::string> expected(10, "ok");
  expected[3] = to_string(Errc::kIo);
  EXPECT_EQ(put_many(10), expected);
  EXPECT_THAT(wrong_keys(10), ::testing::ElementsAre(3U));
  EXPECT_EQ(read_key(*volume_, "k3").error().code, Errc::kNotFound);
  expect_slots_accounted(*volume_);
  ASSERT_TRUE(volume_->flush());
  crash();
  EXPECT_THAT(wrong_keys(10), ::testing::ElementsAre(3U));
  EXPECT_EQ(read_key(*volume_, "k3").error().code, Errc::kNotFound) << "never half there";
}

TEST_F(CommitTest, AFailedReplacementLeavesTheOldValue) {
  ASSERT_TRUE(put_key(*volume_, "key", "old"));
  device_->add_fault(
      {.kind = OperationKind::kWrite, .offset_bytes = volume_->geometry().slots_offset_bytes});
  EXPECT_EQ(put_key(*volume_, "key", "new").error().code, Errc::kIo);
  EXPECT_EQ(read_key(*volume_, "key"), "old");
  device_->clear_faults();
  ASSERT_TRUE(volume_->flush());
  crash();
  EXPECT_EQ(read_key(*volume_, "key"), "old");
}

TEST_F(CommitTest, AThinDeviceThatIsFullFailsPutsAndQuarantinesNothing) {
  ASSERT_TRUE(put_key(*volume_, "before", "x"));
  break_slot(2, ENOSPC);
  EXPECT_THAT(put_many(3), ::testing::ElementsAre("ok", to_string(Errc::kNoSpace), "ok"));
  EXPECT_EQ(stat("slots_quarantined"), 0U);
  EXPECT_FALSE(volume_->is_read_only());
  EXPECT_TRUE(volume_->remove(NodeId::kRoot, "before", RemoveKind::kNotDirectory));
  EXPECT_TRUE(volume_->flush());
  expect_slots_accounted(*volume_);
}

// What is missing of a block may be zeros, and then its front is a block.
TEST_F(CommitTest, ABlockOfWhichAFullDeviceTookTheFrontIsNeverReplayed) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedDeviceOptions options;
    options.seed = seed;
    open(make_device(16 * kMiB, 4096, options));
    ASSERT_TRUE(put_key(*volume_, "key", "old"));
    const Geometry& geometry = volume_->geometry();
    device_->add_fault({.kind = OperationKind::kWrite,
                        .times = 2,
                        .error = ENOSPC,
                        .effect = WriteEffect::kTorn,
                        .offset_bytes = geometry.journal_offset_bytes,
                        .size_bytes = geometry.journal_size_bytes});
    EXPECT_EQ(put_key(*volume_, "key", "new").error().code, Errc::kNoSpace);
    EXPECT_FALSE(volume_->is_read_only());
    ASSERT_TRUE(volume_->close());
    crash();
    EXPECT_EQ(read_key(*volume_, "key"), "old");
  }
}

TEST_F(CommitTest, AJournalBlockThatFailsOnceIsWrittenAgain) {
  break_journal(1);
  EXPECT_THAT(put_many(3), Each("ok"));
  ASSERT_TRUE(volume_->flush());
  crash();
  EXPECT_THAT(wrong_keys(3), IsEmpty());
}

TEST_F(CommitTest, AJournalThatCannotBeWrittenMakesTheStoreReadOnlyWithAReason) {
  ASSERT_TRUE(put_key(*volume_, "old", "value"));
  ASSERT_TRUE(volume_->flush());
  break_journal(UINT64_MAX);
  EXPECT_THAT(put_many(2), Each(to_string(Errc::kIo)));
  EXPECT_TRUE(volume_->is_read_only());
  const auto refused = put_key(*volume_, "later", "x");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kReadOnly);
  EXPECT_THAT(refused.error().step, ::testing::HasSubstr("journal"));
  EXPECT_EQ(to_errno(refused.error()), EROFS);
  EXPECT_EQ(read_key(*volume_, "old"), "value") << "reading goes on";
  EXPECT_FALSE(volume_->inspector().faults().empty());
  crash();
  EXPECT_EQ(read_key(*volume_, "old"), "value");
  EXPECT_TRUE(put_key(*volume_, "later", "x"));
}

TEST_F(CommitTest, AfterFlushesThatFailNothingIsAcknowledgedAndWritesStop) {
  std::uint64_t sequence = 0;
  ASSERT_TRUE(put_key(*volume_, "key", "value", &sequence));
  device_->add_fault({.kind = OperationKind::kFlush, .times = 2});
  EXPECT_FALSE(volume_->flush_until(sequence));
  EXPECT_TRUE(volume_->is_read_only());
  EXPECT_FALSE(volume_->flush_until(sequence)) << "a later flush proves nothing";
  EXPECT_EQ(put_key(*volume_, "other", "x").error().code, Errc::kReadOnly);
  EXPECT_EQ(read_key(*volume_, "key"), "value");
  EXPECT_GE(stat("flush_failures"), 1U);
}

// A failed flush may have lost what was written before it, whoever asked for the flush.
TEST_F(CommitTest, AFlushThatFailsInACheckpointIsNotForgotten) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SimulatedDeviceOptions options;
    options.seed = seed;
    open(make_device(16 * kMiB, 4096, options));
    ASSERT_TRUE(put_key(*volume_, "key", "value"));
    device_->add_fault({.kind = OperationKind::kFlush, .times = 1});
    EXPECT_FALSE(volume_->checkpoint());
    std::uint64_t sequence = 0;
    const bool acknowledged =
        put_key(*volume_, "later", "x", &sequence) && volume_->flush_until(sequence);
    crash();
    if (!acknowledged) continue;
    EXPECT_EQ(read_key(*volume_, "key"), "value") << "seed " << seed;
    EXPECT_EQ(read_key(*volume_, "later"), "x") << "seed " << seed;
  }
}

TEST_F(CommitTest, EveryStepOfACheckpointMayFailAndTheOneBeforeStaysInForce) {
  ASSERT_TRUE(put_key(*volume_, "key", "value"));
  ASSERT_TRUE(volume_->checkpoint());
  const std::uint64_t before = device_->operation_count();
  ASSERT_TRUE(volume_->checkpoint());
  const std::uint64_t steps = device_->operation_count() - before;
  for (std::uint64_t step = 0; step < steps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    open(make_device(16 * kMiB));
    ASSERT_TRUE(put_key(*volume_, "key", "value"));
    ASSERT_TRUE(volume_->checkpoint());
    ASSERT_TRUE(put_key(*volume_, "later", "x"));
    ASSERT_TRUE(volume_->flush());
    device_->add_fault({.kind = OperationKind::kAny, .skip = step, .times = 1});
    static_cast<void>(volume_->checkpoint());
    device_->clear_faults();
    expect_slots_accounted(*volume_);
    crash(CrashMode::kRandom);
    EXPECT_EQ(read_key(*volume_, "key"), "value");
    EXPECT_EQ(read_key(*volume_, "later"), "x");
    EXPECT_TRUE(volume_->checkpoint());
    expect_slots_accounted(*volume_);
  }
}

// --- Batches.

TEST_F(CommitTest, NeighboursShareARequest) {
  device_->clear_calls();
  EXPECT_THAT(put_many(100), Each("ok"));
  const auto calls = device_->calls();
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].writes, 2U) << "100 values as one write, and the journal block";
  EXPECT_EQ(volume_->inspector().batches().back().merged_writes, 99U);
}

TEST_F(CommitTest, ReservedSlotsAreSetAsideUntilTheirCommit) {
  const std::uint64_t free_blocks = volume_->space().free_blocks;
  ASSERT_TRUE(volume_->reserve_slots(100));
  EXPECT_EQ(volume_->space().free_blocks, free_blocks - 100);
  const auto too_many = volume_->reserve_slots(static_cast<std::uint32_t>(free_blocks));
  EXPECT_EQ(too_many.error().code, Errc::kNoSpace);
  ContentChange change = change_for_put(*volume_, "key", bytes_of(std::string(400'000, 'v')));
  change.reserved_slots = 100;
  volume_->commit({&change, 1});
  EXPECT_TRUE(change.result);
  EXPECT_EQ(stat("slots_reserved"), 0U);
  ASSERT_TRUE(volume_->reserve_slots(5));
  volume_->unreserve_slots(5);
  expect_slots_accounted(*volume_);
}

TEST_F(CommitTest, PlacedWindowsAreReadableBeforeTheirCommitAndGoneWhenDiscarded) {
  const auto node = volume_->create(NodeId::kRoot, "file", NodeKind::kFile, {}, {}, true);
  ASSERT_TRUE(node);
  const std::uint32_t window_bytes = volume_->geometry().window_size_bytes();
  const auto place = [&](std::uint32_t window, char fill) {
    ContentChange change;
    change.node = node->node;
    change.place_only = true;
    change.writes.push_back({window, window_bytes, Buffer::from_heap(window_bytes)});
    std::memset(change.writes[0].data.data(), fill, window_bytes);
    volume_->commit({&change, 1});
    EXPECT_TRUE(change.result);
    EXPECT_THAT(change.placed, SizeIs(1));
    return std::move(change.placed.front());
  };
  std::vector<PlacedWindow> placed{place(0, 'a'), place(1, 'b')};
  const auto dropped = place(2, 'c');
  const auto view = volume_->read_placed(node->node, placed[1], 10, 100);
  ASSERT_TRUE(view);
  EXPECT_EQ(text_of(*view), std::string(100, 'b'));
  volume_->discard_placed({&dropped, 1});
  ContentChange change;
  change.node = node->node;
  change.whole = true;
  change.size_bytes = 2 * window_bytes;
  change.placed = std::move(placed);
  volume_->commit({&change, 1});
  ASSERT_TRUE(change.result);
  volume_->release(node->node);
  ASSERT_TRUE(volume_->flush());
  expect_slots_accounted(*volume_);
  crash();
  EXPECT_EQ(read_key(*volume_, "file"),
            std::string(window_bytes, 'a') + std::string(window_bytes, 'b'));
}

TEST_F(CommitTest, PlacedWindowsOfACrashAreFreeAgain) {
  const auto node = volume_->create(NodeId::kRoot, "file", NodeKind::kFile, {}, {}, true);
  const std::uint64_t free_slots = stat("slots_free");
  ContentChange change;
  change.node = node->node;
  change.place_only = true;
  change.writes.push_back({0, 4096, Buffer::from_heap(4096)});
  volume_->commit({&change, 1});
  ASSERT_TRUE(volume_->flush());
  crash();
  EXPECT_GE(stat("slots_free") + stat("slots_checkpoint"), free_slots);
  EXPECT_EQ(stat("slots_live"), 0U);
  expect_slots_accounted(*volume_);
}

TEST_F(CommitTest, AWindowThatWasGivenUpIsNoFaultToItsReader) {
  const auto node = volume_->create(NodeId::kRoot, "file", NodeKind::kFile, {}, {}, true);
  ASSERT_TRUE(node);
  ContentChange change = change_for_put(*volume_, {}, bytes_of(value_of(1, 5000)));
  change.key = {};
  change.node = node->node;
  change.place_only = true;
  volume_->commit({&change, 1});
  ASSERT_TRUE(change.result);
  ASSERT_EQ(change.placed.size(), 1U);
  EXPECT_TRUE(volume_->read_placed(node->node, change.placed[0], 0, 5000));
  volume_->discard_placed(change.placed);
  for (int i = 0; i < 5000; ++i)  // until its slots have other bytes
    ASSERT_TRUE(put_key(*volume_, "other", value_of(2, 5000)));
  const auto read = volume_->read_placed(node->node, change.placed[0], 0, 5000);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Errc::kNotFound);
  EXPECT_THAT(volume_->inspector().faults(), IsEmpty());
  EXPECT_EQ(stat("checksum_failures"), 0U);
  EXPECT_TRUE(volume_->flush());
}

TEST_F(CommitTest, APlacedWindowIsReadAfterItsCommitToo) {
  const auto node = volume_->create(NodeId::kRoot, "file", NodeKind::kFile, {}, {}, true);
  const std::string value = value_of(1, 5000);
  ContentChange placing = change_for_put(*volume_, {}, bytes_of(value));
  placing.key = {};
  placing.node = node->node;
  placing.place_only = true;
  volume_->commit({&placing, 1});
  ContentChange commit;
  commit.node = node->node;
  commit.size_bytes = 5000;
  commit.whole = true;
  commit.placed = placing.placed;
  volume_->commit({&commit, 1});
  ASSERT_TRUE(commit.result);
  const auto read = volume_->read_placed(node->node, placing.placed[0], 0, 5000);
  ASSERT_TRUE(read);
  EXPECT_EQ(text_of(*read), value);
}

}  // namespace
}  // namespace kvslot::testing
