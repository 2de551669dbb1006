// Schedules that are forced: the device stands still at the dangerous place while the other side
// does its part. Random ones are in interleaving_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/batcher.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "core/put_changes.h"
#include "core/put_combiner.h"
#include "tests/support/check_report.h"
#include "tests/support/engine.h"
#include "tests/support/environment.h"
#include "tests/support/interleaving_device.h"

namespace kvslot::testing {
namespace {

// An answer that comes once.
struct Answer {
  std::atomic<int> count = 0;
  std::promise<Result<void>> promise;
  void operator()(Result<void> result) {
    if (++count == 1) promise.set_value(std::move(result));
  }
  Result<void> get() { return promise.get_future().get(); }
};

class Schedules : public ::testing::Test {
 protected:
  Store& store() { return harness_.store(); }
  Volume& volume() { return harness_.volume(); }
  Batcher& batcher() { return harness_.store().batcher(); }
  SimulatedDevice& device() { return harness_.device(); }

  void submit(const std::string& key, std::size_t size_bytes, Durability durability,
              Answer& answer) {
    keys_.push_back(key);
    batcher().submit(
        change_for_put(volume(), keys_.back(), bytes_of(value_of(keys_.size(), size_bytes))),
        durability, [&answer](ContentChange change) { answer(change.result); });
  }
  // Whether close() has begun: nothing is taken any more.
  bool is_closing() {
    const auto refused = std::make_shared<std::atomic<bool>>(false);
    batcher().barrier([refused](Result<void> result) {
      if (!result && result.error().code == Errc::kBusy) *refused = true;
    });
    return *refused;
  }

  StoreHarness harness_{64 * kMiB};
  std::deque<std::string> keys_;
};

TEST_F(Schedules, AFailedFlushIsToldOnceToEachWhateverBlockTheyWaitFor) {
  device().hold(OperationKind::kFlush);
  Answer first, second, third, unrelated;
  submit("first", 100, Durability::kDurable, first);
  device().wait_until_held(1);
  // More than what gathers behind a flush: it is written meanwhile, for a later flush.
  submit("second", 2 << 20, Durability::kDurable, second);
  submit("unrelated", 100, Durability::kWritten, unrelated);
  batcher().barrier([&third](Result<void> result) { third(std::move(result)); });
  device().add_fault({.kind = OperationKind::kFlush});
  device().release();
  EXPECT_FALSE(first.get());
  EXPECT_FALSE(second.get());
  EXPECT_FALSE(third.get());
  static_cast<void>(unrelated.get());
  batcher().close();
  for (const Answer* answer : {&first, &second, &third, &unrelated}) EXPECT_EQ(answer->count, 1);
  EXPECT_TRUE(volume().is_read_only());
}

TEST_F(Schedules, CloseWaitsForAsynchronousPutsAndTwoMayClose) {
  device().hold(OperationKind::kWrite);
  AsyncPut put;
  for (int i = 0; i < 20; ++i) {
    put.keys.push_back("k" + std::to_string(i));
    auto value = std::make_shared<std::string>(value_of(static_cast<std::uint64_t>(i), 5000));
    put.values.push_back({bytes_of(*value), value});
  }
  const auto futures = batcher().submit_put_many(std::move(put));
  ASSERT_EQ(futures.size(), 20U);
  device().wait_until_held(1);
  std::thread closer([&] { EXPECT_TRUE(store().close()); });
  std::thread another([&] { EXPECT_TRUE(store().close()); });
  while (!is_closing()) std::this_thread::yield();
  device().release();
  closer.join();
  another.join();
  EXPECT_EQ(futures[0].get().stored.size(), 20U);
  harness_.crash();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(store().contains("k" + std::to_string(i)));
}

TEST_F(Schedules, NamesThatWaitForTheCommitterGoOnWhenTheBatcherCloses) {
  device().hold(OperationKind::kFlush);
  Answer durable;
  submit("key", 100, Durability::kDurable, durable);
  device().wait_until_held(1);
  std::thread closer([&] { batcher().close(); });
  while (!is_closing()) std::this_thread::yield();
  // What the committer does not take any more: far over the bound.
  constexpr int kNames = 2000;
  std::atomic<int> made = 0;
  std::thread maker([&] {
    for (; made < kNames; ++made) {
      EXPECT_TRUE(volume().create(NodeId::kRoot, std::string(200, 'd') + std::to_string(made),
                                  NodeKind::kDirectory, {}));
    }
  });
  while (harness_.stat("waiting_calls") == 0 && made < kNames) std::this_thread::yield();
  EXPECT_LT(made, kNames) << "nobody waits: the bound is not reached";
  EXPECT_TRUE(is_closing());
  device().release();
  maker.join();
  closer.join();
  EXPECT_TRUE(durable.get());
}

TEST_F(Schedules, ABarrierCoversWhatWasSubmittedBeforeItAndNothingNeedsWhatComesAfter) {
  device().hold(OperationKind::kWrite);
  Answer running, before, after, barrier;
  submit("running", 100, Durability::kWritten, running);
  device().wait_until_held(1);
  submit("before", 100, Durability::kWritten, before);
  ASSERT_TRUE(volume().create(NodeId::kRoot, "directory", NodeKind::kDirectory, {}));
  std::unique_ptr<SimulatedDevice> left;
  batcher().barrier([&](Result<void> result) {
    left = device().survivor(1, CrashMode::kNone);
    barrier(std::move(result));
  });
  submit("after", 100, Durability::kWritten, after);
  device().release();
  EXPECT_TRUE(barrier.get());
  for (Answer* answer : {&running, &before, &after}) EXPECT_TRUE(answer->get());
  const auto found = Volume::open(std::move(left), {.seed = 1});
  ASSERT_TRUE(found);
  EXPECT_TRUE((*found)->find("running"));
  EXPECT_TRUE((*found)->find("before"));
  EXPECT_TRUE((*found)->find("directory"));
}

TEST_F(Schedules, ALeaderThatFailsTellsItsFollowersAndTheNextLeaderGoesOn) {
  PutCombiner combiner(volume());
  device().hold(OperationKind::kWrite);
  std::vector<ContentChange> changes(4);
  std::vector<std::thread> threads;
  const auto put = [&](std::size_t i) {
    keys_.push_back("k" + std::to_string(i));
    changes[i] = change_for_put(volume(), keys_.back(), bytes_of("value"));
    threads.emplace_back([&, i] { combiner.run({&changes[i], 1}, Durability::kDurable); });
  };
  put(0);
  device().wait_until_held(1);
  for (std::size_t i = 1; i < 4; ++i) {
    put(i);
    while (combiner.waiting_count() != i) std::this_thread::yield();
  }
  // The leader's block is written; the three that follow find no room for theirs.
  device().let_pass(1);
  while (combiner.waiting_count() != 0) std::this_thread::yield();
  device().wait_until_held(1);
  device().add_fault({.kind = OperationKind::kWrite,
                      .error = ENOSPC,
                      .offset_bytes = volume().geometry().journal_offset_bytes,
                      .size_bytes = volume().geometry().journal_size_bytes});
  device().release();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(changes[0].result);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(changes[i].result.error().code, Errc::kNoSpace);
  device().clear_faults();
  EXPECT_TRUE(store().put("next", bytes_of("value")));
  EXPECT_FALSE(store().contains("k1"));
  expect_slots_accounted(volume());
}

TEST_F(Schedules, TwoWritersOfOneKeyAreOrderedAsTheyWereTaken) {
  device().hold(OperationKind::kWrite);
  Answer first, second, removed;
  submit("key", 5000, Durability::kWritten, first);
  device().wait_until_held(1);
  submit("key", 300000, Durability::kWritten, second);
  EXPECT_TRUE(store().remove("key")) << "the key is shown while its first value is written";
  device().release();
  EXPECT_TRUE(first.get());
  EXPECT_TRUE(second.get());
  EXPECT_EQ(store().get("key"), value_of(2, 300000)) << "put, removed, put again";
  harness_.reopen();
  EXPECT_EQ(store().get("key"), value_of(2, 300000));
  expect_slots_accounted(volume());
}

TEST_F(Schedules, ABatchThatNeedsTheSlotsOfAReaderWaitsForItAndTheReaderGetsItsBytes) {
  StoreHarness small(16 * kMiB);
  const std::string old = value_of(1, 4 * kMiB);
  ASSERT_TRUE(small.store().put("read", bytes_of(old)));
  const std::uint64_t free_bytes = small.volume().space().free_blocks * kBlockSizeBytes;
  ASSERT_TRUE(small.store().put("rest", bytes_of(value_of(2, free_bytes - 3 * kMiB))));
  small.device().hold(OperationKind::kRead);
  std::thread reader([&] { EXPECT_TRUE(small.store().get("read") == old); });
  small.device().wait_until_held(1);
  ASSERT_TRUE(small.store().put("read", bytes_of("replaced")));
  EXPECT_GT(small.stat("slots_doomed"), 0U) << "nobody may write over what is being read";
  std::atomic<bool> is_stored = false;
  std::thread writer([&] {
    EXPECT_TRUE(small.store().put("new", bytes_of(value_of(3, 5 * kMiB))));
    is_stored = true;
  });
  while (small.stat("waiting_calls") == 0 && !is_stored) std::this_thread::yield();
  EXPECT_FALSE(is_stored) << "it took slots that are being read";
  small.device().release();
  writer.join();
  reader.join();
  EXPECT_EQ(small.store().get("new"), value_of(3, 5 * kMiB));
  expect_slots_accounted(small.volume());
}

// ---- Closing

// While the store closes, at every call on the device, others try to get something in.
TEST(ClosingSchedules, NothingIsTakenWhileTheStoreClosesAndNothingTakenIsLost) {
  const std::shared_ptr<SimulatedDevice> device = make_device(16 * kMiB);
  std::unique_ptr<Volume> volume;
  bool is_closing = false;
  int refused = 0;
  const auto meddle = [&](const PausedCall&) {
    if (!is_closing) return;
    const auto made = volume->create(NodeId::kRoot, "late", NodeKind::kDirectory, {});
    EXPECT_FALSE(made) << "what is said to be there is lost, or follows the clean mark";
    EXPECT_FALSE(volume->remove(NodeId::kRoot, "directory", RemoveKind::kDirectory));
    EXPECT_FALSE(volume->reserve_slots(1));
    ++refused;
  };
  auto opened = Volume::open(std::make_unique<InterleavingDevice>(device, meddle), {.seed = 1});
  ASSERT_TRUE(opened);
  volume = std::move(*opened);
  ASSERT_TRUE(put_key(*volume, "key", "value"));
  ASSERT_TRUE(volume->create(NodeId::kRoot, "directory", NodeKind::kDirectory, {}));
  is_closing = true;
  EXPECT_TRUE(volume->close());
  EXPECT_GT(refused, 0);
  is_closing = false;
  auto again = Volume::open(device->survivor(1, CrashMode::kNone), {.seed = 1});
  ASSERT_TRUE(again);
  EXPECT_EQ(read_key(**again, "key"), "value");
  EXPECT_TRUE((*again)->find("directory"));
  EXPECT_FALSE((*again)->find("late"));
}

// Threads put until they are told that the store is closed. KVSLOT_CLOSING_ROUNDS: how often.
TEST(ClosingSchedules, WhatWasAcknowledgedBeforeTheCloseIsThere) {
  for (std::uint64_t round = number_from("KVSLOT_CLOSING_ROUNDS", 30); round > 0; --round) {
    StoreHarness harness(16 * kMiB);
    constexpr int kThreads = 3;
    std::vector<std::vector<std::string>> stored(kThreads);
    std::atomic<std::uint64_t> acknowledged = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0;; ++i) {
          const std::string key = std::to_string(t) + "/" + std::to_string(i);
          const auto put = harness.store().put(key, bytes_of(key));
          if (!put) {
            EXPECT_EQ(put.error().code, Errc::kBusy) << put.error().step;
            return;
          }
          stored[static_cast<std::size_t>(t)].push_back(key);
          ++acknowledged;
        }
      });
    }
    while (acknowledged < round % 10) std::this_thread::yield();
    EXPECT_TRUE(harness.store().close());
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(remarks_of(check(harness.device())), ::testing::IsEmpty());
    harness.crash();
    for (const auto& keys : stored)
      for (const std::string& key : keys) EXPECT_EQ(harness.store().get(key), key);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvslot::testing
