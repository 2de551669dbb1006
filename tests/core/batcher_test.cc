// The asynchronous front: one future for a dispatch, every reference released once, nobody harmed
// by a neighbour's failure. The device is held where the order of things matters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/batcher.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/put_changes.h"
#include "tests/support/engine.h"

namespace kvslot::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class BatcherTest : public ::testing::Test {
 protected:
  Store& store() { return harness_.store(); }
  Batcher& batcher() { return harness_.store().batcher(); }
  SimulatedDevice& device() { return harness_.device(); }

  // A lent value whose release is counted under its key.
  LentValue lend(const std::string& key, std::string value) {
    auto text = std::make_unique<std::string>(std::move(value));
    const ConstBytes bytes = bytes_of(*text);
    std::shared_ptr<const void> owner(text.release(), [this, key](const void* released) {
      delete static_cast<const std::string*>(released);
      const MutexLock lock(mutex_);
      ++released_[key];
    });
    return {bytes, std::move(owner)};
  }
  AsyncPut put_of(const std::vector<std::string>& keys, std::size_t size_bytes = 100) {
    AsyncPut put;
    for (const std::string& key : keys) {
      put.keys.push_back(key);
      put.values.push_back(lend(key, value_of(std::hash<std::string>()(key), size_bytes)));
    }
    put.on_complete = [this](std::string_view key) {
      EXPECT_TRUE(store().contains(key)) << "called before the key is in the index";
      const MutexLock lock(mutex_);
      completed_.emplace_back(key);
    };
    return put;
  }
  // Every owner was let go of exactly as often as it was lent.
  void expect_released(const std::map<std::string, int>& expected) {
    const MutexLock lock(mutex_);
    EXPECT_EQ(released_, expected);
  }
  std::vector<std::string> completed() {
    const MutexLock lock(mutex_);
    return completed_;
  }
  // The error with which a future failed.
  static Errc error_of(const PutFuture& future) {
    try {
      future.get();
    } catch (const PutFailed& failed) {
      return failed.error().code;
    }
    ADD_FAILURE() << "the future holds a report";
    return Errc::kIo;
  }
  void fail_writes_of_values() {
    device().add_fault({.kind = OperationKind::kWrite,
                        .offset_bytes = store().volume().geometry().slots_offset_bytes});
  }

  StoreHarness harness_{16 * kMiB};
  Mutex mutex_;
  std::map<std::string, int> released_ GUARDED_BY(mutex_);
  std::vector<std::string> completed_ GUARDED_BY(mutex_);
};

TEST_F(BatcherTest, AllAcceptedKeysShareOneFuture) {
  const auto futures = batcher().submit_put_many(put_of({"a", "b", "c"}));
  ASSERT_EQ(futures.size(), 3U);
  EXPECT_EQ(&futures[0].get(), &futures[1].get());
  EXPECT_EQ(&futures[0].get(), &futures[2].get());
  EXPECT_THAT(futures[0].get().stored, ElementsAre("a", "b", "c"));
  EXPECT_THAT(futures[0].get().failed, IsEmpty());
  EXPECT_THAT(completed(), ElementsAre("a", "b", "c"));
  expect_released({{"a", 1}, {"b", 1}, {"c", 1}});
}

TEST_F(BatcherTest, ManyKeysAreOneDispatchAndTwoLocks) {
  std::vector<std::string> keys;
  for (int i = 0; i < 100; ++i) keys.push_back("k" + std::to_string(i));
  const std::uint64_t locks = harness_.stat("commit_locks");
  const std::uint64_t dispatches = batcher().dispatches();
  const auto futures = batcher().submit_put_many(put_of(keys));
  ASSERT_EQ(futures.size(), 100U);
  EXPECT_EQ(futures[0].get().stored.size(), 100U);
  EXPECT_EQ(batcher().dispatches() - dispatches, 1U);
  EXPECT_EQ(harness_.stat("commit_locks") - locks, 2U);
}

TEST_F(BatcherTest, StoredKeysAreNotAcceptedAgainAndNothingAcceptedMeansNoFuture) {
  batcher().submit_put_many(put_of({"a", "b"}))[0].wait();
  EXPECT_THAT(batcher().submit_put_many(put_of({"a", "b"})), IsEmpty());
  const auto futures = batcher().submit_put_many(put_of({"a", "c"}));
  ASSERT_EQ(futures.size(), 1U);
  EXPECT_THAT(futures[0].get().stored, ElementsAre("c"));
  EXPECT_THAT(completed(), ElementsAre("a", "b", "c"));
  expect_released({{"a", 3}, {"b", 2}, {"c", 1}});
}

TEST_F(BatcherTest, KeysInFlightAreSkipped) {
  device().hold(OperationKind::kWrite);
  const auto first = batcher().submit_put_many(put_of({"a", "b"}));
  device().wait_until_held(1);
  EXPECT_TRUE(store().exists_inflight("a"));
  EXPECT_FALSE(store().exists_inflight("c"));
  const std::vector<std::string_view> asked{"a", "c", "b"};
  EXPECT_THAT(store().exists_inflight_many(asked), ElementsAre(true, false, true));
  const auto second = batcher().submit_put_many(put_of({"b", "c"}));
  EXPECT_EQ(second.size(), 1U);
  EXPECT_THAT(batcher().submit_put_many(put_of({"c", "a"})), IsEmpty());
  device().release();
  EXPECT_THAT(first[0].get().stored, ElementsAre("a", "b"));
  EXPECT_THAT(second[0].get().stored, ElementsAre("c"));
  EXPECT_FALSE(store().exists_inflight("a"));
  expect_released({{"a", 2}, {"b", 2}, {"c", 2}});
}

TEST_F(BatcherTest, AKeyTwiceInOneCallIsAcceptedOnce) {
  const auto futures = batcher().submit_put_many(put_of({"a", "a", "b"}));
  EXPECT_EQ(futures.size(), 2U);
  EXPECT_THAT(futures[0].get().stored, UnorderedElementsAre("a", "b"));
  expect_released({{"a", 2}, {"b", 1}});
}

TEST_F(BatcherTest, AThrowingCallbackHarmsNobody) {
  AsyncPut put = put_of({"a", "b", "c"});
  int calls = 0;
  put.on_complete = [&](std::string_view key) {
    ++calls;
    if (key == "b") throw std::runtime_error("the caller's own trouble");
  };
  const auto futures = batcher().submit_put_many(std::move(put));
  EXPECT_THAT(futures[0].get().stored, ElementsAre("a", "b", "c"));
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(store().contains("b"));
  expect_released({{"a", 1}, {"b", 1}, {"c", 1}});
}

TEST_F(BatcherTest, WhenEveryKeyFailsTheFutureFails) {
  fail_writes_of_values();
  const auto futures = batcher().submit_put_many(put_of({"a", "b"}));
  ASSERT_EQ(futures.size(), 2U);
  EXPECT_EQ(error_of(futures[0]), Errc::kIo);
  EXPECT_THAT(completed(), IsEmpty());
  EXPECT_FALSE(store().contains("a"));
  expect_released({{"a", 1}, {"b", 1}});
  device().clear_faults();
  EXPECT_THAT(batcher().submit_put_many(put_of({"a", "b"}))[0].get().stored, ElementsAre("a", "b"));
  expect_slots_accounted(store().volume());
}

TEST_F(BatcherTest, WhenSomeKeysFailTheReportListsThem) {
  AsyncPut put = put_of({"a", "c"});
  put.keys.insert(put.keys.begin() + 1, "big");
  put.values.insert(put.values.begin() + 1, lend("big", std::string(15 * kMiB, 'b')));
  put.keys.push_back("bad/../key");
  put.values.push_back(lend("bad/../key", "x"));
  const auto futures = batcher().submit_put_many(std::move(put));
  ASSERT_EQ(futures.size(), 4U);
  const AsyncPutReport& report = futures[0].get();
  EXPECT_THAT(report.stored, ElementsAre("a", "c"));
  ASSERT_EQ(report.failed.size(), 2U);
  EXPECT_EQ(report.failed[0].first, "big");
  EXPECT_EQ(report.failed[0].second.code, Errc::kNoSpace);
  EXPECT_EQ(report.failed[1].first, "bad/../key");
  EXPECT_EQ(report.failed[1].second.code, Errc::kInvalid);
  EXPECT_THAT(completed(), ElementsAre("a", "c"));
  expect_released({{"a", 1}, {"big", 1}, {"bad/../key", 1}, {"c", 1}});
}

TEST_F(BatcherTest, AFailedDispatchReleasesEverythingAndTheFutureFails) {
  batcher().fail_dispatch_for_testing();
  const auto futures = batcher().submit_put_many(put_of({"a", "b"}));
  ASSERT_EQ(futures.size(), 2U);
  EXPECT_EQ(error_of(futures[0]), Errc::kBusy);
  EXPECT_EQ(error_of(futures[1]), Errc::kBusy);
  EXPECT_THAT(completed(), IsEmpty());
  expect_released({{"a", 1}, {"b", 1}});
  // The keys are no longer under way: they would be accepted again.
  EXPECT_EQ(batcher().submit_put_many(put_of({"a", "b"})).size(), 2U);
}

TEST_F(BatcherTest, AfterCloseEverythingIsRefusedAndReleased) {
  batcher().close();
  batcher().close();
  EXPECT_EQ(error_of(batcher().submit_put_many(put_of({"a"}))[0]), Errc::kBusy);
  expect_released({{"a", 1}});
  Result<void> answered;
  batcher().submit(change_for_put(store().volume(), "b", bytes_of("x")), Durability::kWritten,
                   [&](const ContentChange& change) { answered = change.result; });
  EXPECT_EQ(answered.error().code, Errc::kBusy);
  Result<void> flushed;
  batcher().barrier([&](Result<void> result) { flushed = result; });
  EXPECT_EQ(flushed.error().code, Errc::kBusy);
}

TEST_F(BatcherTest, CloseWaitsForWhatIsUnderWay) {
  device().hold(OperationKind::kWrite);
  const auto futures = batcher().submit_put_many(put_of({"a", "b"}));
  device().wait_until_held(1);
  std::thread closer([&] { batcher().close(); });
  device().release();
  closer.join();
  EXPECT_EQ(futures[0].wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_THAT(futures[0].get().stored, ElementsAre("a", "b"));
  expect_released({{"a", 1}, {"b", 1}});
}

TEST_F(BatcherTest, PutsThatComeWhileTheDeviceIsBusyBecomeOneBatch) {
  device().hold(OperationKind::kWrite);
  const auto first = batcher().submit_put_many(put_of({"first"}));
  device().wait_until_held(1);
  const std::uint64_t batches = harness_.stat("batches");
  std::vector<std::vector<PutFuture>> futures(32);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < futures.size(); ++i)
    threads.emplace_back(
        [&, i] { futures[i] = batcher().submit_put_many(put_of({"k" + std::to_string(i)})); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(batcher().queued(), 32U);
  device().release();
  for (const auto& future : futures) EXPECT_EQ(future[0].get().stored.size(), 1U);
  EXPECT_EQ(harness_.stat("batches") - batches, 2U) << "the first, and one of all 32";
  EXPECT_EQ(store().volume().inspector().batches().back().keys, 32U);
}

TEST_F(BatcherTest, ABarrierCoversEverythingBeforeIt) {
  batcher().submit_put_many(put_of({"a", "gone"}))[0].wait();
  ASSERT_TRUE(store().remove("gone"));
  batcher().submit_put_many(put_of({"b"}));
  std::promise<Result<void>> flushed;
  batcher().barrier([&](Result<void> result) { flushed.set_value(result); });
  EXPECT_TRUE(flushed.get_future().get());
  harness_.crash();
  EXPECT_TRUE(store().contains("a"));
  EXPECT_TRUE(store().contains("b"));
  EXPECT_FALSE(store().contains("gone"));
}

TEST_F(BatcherTest, ADurablePutSurvivesPowerLossOnceItsFutureIsReady) {
  AsyncPut put = put_of({"a"});
  put.durability = Durability::kDurable;
  batcher().submit_put_many(std::move(put))[0].wait();
  harness_.crash();
  EXPECT_TRUE(store().contains("a"));
}

TEST_F(BatcherTest, AFailedFlushAcknowledgesNobodyAndStopsTheStore) {
  device().add_fault({.kind = OperationKind::kFlush, .times = 2});
  AsyncPut put = put_of({"a", "b"});
  put.durability = Durability::kDurable;
  EXPECT_EQ(error_of(batcher().submit_put_many(std::move(put))[0]), Errc::kIo);
  EXPECT_TRUE(store().volume().is_read_only());
  expect_released({{"a", 1}, {"b", 1}});
  EXPECT_EQ(error_of(batcher().submit_put_many(put_of({"c"}))[0]), Errc::kReadOnly);
}

}  // namespace
}  // namespace kvslot::testing
