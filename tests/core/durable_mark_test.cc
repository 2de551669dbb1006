// The block that says of the last batch that it is durable: damage behind it is told from a write
// that power loss cut off, and it costs one write when nothing else goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/admin.h>
#include <kvslot/batcher.h>

#include <future>
#include <string>

#include "core/put_changes.h"
#include "tests/support/patience.h"
#include "tests/support/recovery_fixture.h"

namespace kvslot::testing {
namespace {

using ::testing::ElementsAre;

class DurableMark : public RecoveryTest {
 protected:
  // How many writes the device saw meanwhile; no flush among the operations.
  std::uint64_t marks_written(int calls = 1) {
    const DeviceCounters before = device_->counters();
    for (int i = 0; i < calls; ++i) volume_->record_durable();
    const DeviceCounters after = device_->counters();
    EXPECT_EQ(after.flushes, before.flushes);
    return after.writes - before.writes;
  }
  std::uint64_t head() { return volume_->inspector().journal().head_offset_bytes; }
  bool is_damaged() {
    const auto report = check_device(*device_, {});
    EXPECT_TRUE(report);
    return report && report->damaged;
  }
};

TEST_F(DurableMark, AValueThatRotsBehindItIsKeptAndCannotBeRead) {
  put_durably("a");
  put_durably("b");
  volume_->record_durable();
  damage_value("b");
  device_ = device_->survivor(1, CrashMode::kAll);
  EXPECT_TRUE(is_damaged());
  crash(CrashMode::kAll);
  EXPECT_THAT(keys(), ElementsAre("a", "b"));
  expect_value("a");
  EXPECT_EQ(read_key(*volume_, "b").error().code, Errc::kCorrupt);
  expect_slots_accounted(*volume_);
  EXPECT_TRUE(is_damaged());
}

TEST_F(DurableMark, WithoutItTheLogEndsBeforeTheValue) {
  put_durably("a");
  put_durably("b");
  volume_->record_durable();  // lost with the power
  damage_value("b");
  crash(CrashMode::kNone);
  EXPECT_THAT(keys(), ElementsAre("a"));
  EXPECT_FALSE(is_damaged());
}

TEST_F(DurableMark, ABlockThatRotsBeforeItIsDamage) {
  put_durably("a");
  const std::uint64_t offset = volume_->geometry().journal_offset_bytes + head();
  put_durably("b");
  volume_->record_durable();
  auto left = device_->survivor(1, CrashMode::kAll);
  left->flip_bit(offset + 70, 0);
  EXPECT_EQ(try_open(std::move(left)).error().code, Errc::kCorrupt);
  EXPECT_TRUE(is_damaged());
}

TEST_F(DurableMark, IsWrittenOnceUntilSomethingElseIsCommitted) {
  EXPECT_EQ(marks_written(), 0U) << "an opening says it";
  put("a");
  EXPECT_EQ(marks_written(), 0U) << "it is not durable";
  ASSERT_TRUE(volume_->flush());
  EXPECT_EQ(marks_written(3), 1U);
  ASSERT_TRUE(volume_->flush());
  EXPECT_EQ(marks_written(3), 0U) << "nothing but the mark was flushed";
  put_durably("b");
  EXPECT_EQ(marks_written(3), 1U);
  put_durably("c");
  ASSERT_TRUE(volume_->checkpoint());
  EXPECT_EQ(marks_written(), 0U) << "the checkpoint says it";
  put_durably("d");
  ASSERT_TRUE(volume_->close());
  EXPECT_EQ(marks_written(), 0U);
  crash();
  EXPECT_EQ(marks_written(), 0U);
  EXPECT_THAT(keys(), ElementsAre("a", "b", "c", "d"));
}

// What is recorded knows the number of the block that it will be in: its slots are free then.
TEST_F(DurableMark, DoesNotTakeTheNumberOfABlockThatIsAwaited) {
  put_durably("a");
  ASSERT_TRUE(volume_->remove(NodeId::kRoot, "a", RemoveKind::kNotDirectory));
  EXPECT_EQ(marks_written(), 0U);
  ASSERT_TRUE(volume_->flush());
  EXPECT_EQ(marks_written(), 1U);
  expect_slots_accounted(*volume_);
  EXPECT_EQ(stat("slots_live"), 0U);
}

TEST_F(DurableMark, IsLeftOutWhereTheDeviceDoesNotTakeIt) {
  for (const int error : {EIO, ENOSPC}) {
    for (const WriteEffect effect : {WriteEffect::kRefused, WriteEffect::kTorn}) {
      open(make_device(16 * kMiB));
      put_durably("a");
      device_->add_fault(
          {.kind = OperationKind::kWrite, .times = 1, .error = error, .effect = effect});
      volume_->record_durable();
      EXPECT_EQ(marks_written(), 0U) << "tried once";
      EXPECT_FALSE(volume_->is_read_only());
      crash(CrashMode::kAll);
      EXPECT_THAT(keys(), ElementsAre("a"));
      put_durably("b");
      device_->add_fault(
          {.kind = OperationKind::kWrite, .times = 1, .error = error, .effect = effect});
      volume_->record_durable();
      put_durably("c");
      EXPECT_EQ(marks_written(), 1U);
      crash(CrashMode::kAll);
      EXPECT_THAT(keys(), ElementsAre("a", "b", "c"));
      EXPECT_FALSE(is_damaged());
    }
  }
}

// It might be there all the same, and be replayed in place of the block that comes next.
TEST_F(DurableMark, OneThatCanNeitherBeWrittenNorErasedStopsTheStore) {
  put_durably("a");
  device_->add_fault({.kind = OperationKind::kWrite, .times = 100, .error = EIO});
  volume_->record_durable();
  EXPECT_TRUE(volume_->is_read_only());
  EXPECT_FALSE(put_key(*volume_, "b", value_of('b' + 1, 5000)));
  device_->clear_faults();
  crash(CrashMode::kAll);
  EXPECT_THAT(keys(), ElementsAre("a"));
}

TEST_F(DurableMark, ALostDeviceStopsTheStoreAsEver) {
  put_durably("a");
  device_->crash_after_operations(0);
  volume_->record_durable();
  EXPECT_TRUE(volume_->is_read_only());
  EXPECT_EQ(marks_written(), 0U);
}

TEST_F(DurableMark, NeverFillsTheJournal) {
  VolumeOptions options;
  options.inline_checkpoints = false;
  ASSERT_TRUE(try_open(std::move(device_)->survivor(1, CrashMode::kAll), options));
  const std::uint64_t half = volume_->geometry().journal_size_bytes / 2;
  std::uint64_t marks = 0;
  std::uint64_t rounds = 0;
  for (; volume_->inspector().journal().used_bytes <= half; ++rounds) {
    put_durably("k" + std::to_string(rounds), 100);
    marks += marks_written();
  }
  EXPECT_GE(marks + 1, rounds);
  EXPECT_TRUE(volume_->wants_checkpoint());
  put_durably("z", 100);
  EXPECT_EQ(marks_written(), 0U) << "a checkpoint is due";
  ASSERT_TRUE(volume_->checkpoint());
  put_durably("after", 100);
  EXPECT_EQ(marks_written(), 1U);
  crash(CrashMode::kAll);
  EXPECT_EQ(keys().size(), rounds + 2);
}

TEST_F(DurableMark, PowerLossAtAnyPointOfALogWithMarksLosesNothingDurable) {
  const auto script = [this](std::vector<std::string>& durable) {
    for (const char* key : {"a", "b", "c"}) {
      if (!put_key(*volume_, key, value_of(key[0] + 1, 5000))) return;
      if (!volume_->flush()) return;
      durable.emplace_back(key);
      volume_->record_durable();
      static_cast<void>(volume_->remove(NodeId::kRoot, "x", RemoveKind::kNotDirectory));
      static_cast<void>(put_key(*volume_, "x", key));
    }
  };
  bool is_over = false;
  for (std::uint64_t step = 0; !is_over; ++step) {
    open(make_device(16 * kMiB));
    const std::uint64_t before = device_->operation_count();
    device_->crash_after_operations(step);
    std::vector<std::string> durable;
    script(durable);
    is_over = device_->operation_count() - before < step;
    const std::shared_ptr<SimulatedDevice> cut = device_;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE("operation " + std::to_string(step) + ", seed " + std::to_string(seed));
      ASSERT_NO_FATAL_FAILURE(open(cut->survivor(seed, CrashMode::kRandom)));
      for (const std::string& key : durable) expect_value(key);
      EXPECT_FALSE(is_damaged());
      put_durably("after");
    }
  }
}

// ---- Driven by a batcher whose intervals are over at once, so that no clock counts.

TEST_F(DurableMark, ABatcherHasOneWrittenForEachIdleTime) {
  VolumeOptions options;
  options.inline_checkpoints = false;
  ASSERT_TRUE(try_open(make_device(16 * kMiB), options));
  constexpr std::uint64_t kRounds = 3;
  const auto before = volume_->inspector().journal();
  const DeviceCounters at_first = device_->counters();
  {
    Batcher batcher(*volume_, {.commit_interval_ms = 0});
    const auto barrier = [&] {
      std::promise<Result<void>> flushed;
      batcher.barrier([&](Result<void> result) { flushed.set_value(std::move(result)); });
      EXPECT_TRUE(flushed.get_future().get());
    };
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::string key = "k" + std::to_string(round);
      std::promise<Result<void>> stored;
      batcher.submit(change_for_put(*volume_, key, {}), Durability::kDurable,
                     [&](const ContentChange& change) { stored.set_value(change.result); });
      ASSERT_TRUE(stored.get_future().get());
      const std::uint64_t marked = before.published_upto + 2 * round + 2;
      yield_until([&] { return volume_->inspector().journal().published_upto == marked; });
      for (int i = 0; i < 3; ++i) barrier();  // flushes, of the mark too, ask for no other one
    }
    batcher.close();
  }
  EXPECT_EQ(volume_->inspector().journal().published_upto, before.published_upto + 2 * kRounds);
  EXPECT_EQ(device_->counters().writes - at_first.writes, 2 * kRounds) << "values are empty";
}

TEST_F(DurableMark, ABatcherHasNoneWrittenBeforeTheIntervalIsOverNorWhenItCloses) {
  Batcher batcher(*volume_, {.commit_interval_ms = 3'600'000});
  const DeviceCounters before = device_->counters();
  for (const char* key : {"a", "b"}) {
    std::promise<Result<void>> stored;
    batcher.submit(change_for_put(*volume_, key, {}), Durability::kDurable,
                   [&](const ContentChange& change) { stored.set_value(change.result); });
    ASSERT_TRUE(stored.get_future().get());
  }
  batcher.close();
  EXPECT_EQ(device_->counters().writes - before.writes, 2U);
}

}  // namespace
}  // namespace kvslot::testing
