// A full store: who fails, what can still be used, and whether the arithmetic is right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/store.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "core/put_changes.h"
#include "tests/support/engine.h"
#include "tests/support/traced_store.h"

namespace kvslot::testing {
namespace {

using ::testing::Each;

class StoreSpaceTest : public ::testing::Test {
 protected:
  Store& store() { return harness_.store(); }
  Result<void> put(const std::string& key, std::size_t size_bytes) {
    const std::string value = value_of(size_bytes, size_bytes);
    return store().put(key, bytes_of(value), {.durability = Durability::kWritten});
  }
  std::uint64_t free_blocks() { return store().volume().space().free_blocks; }
  // What df prints, and what it is made of.
  void expect_sums() {
    EXPECT_EQ(store().volume().space().total_blocks, harness_.stat("slots_total"));
    expect_no_faults_at_rest([this] { return faults_of_sums(); });
    expect_slots_accounted(store().volume());
  }

 private:
  std::string faults_of_sums() {
    const SpaceInfo space = store().volume().space();
    const std::uint64_t all = harness_.stat("slots_free") + harness_.stat("slots_live") +
                              harness_.stat("slots_doomed") + harness_.stat("slots_quarantined") +
                              harness_.stat("slots_checkpoint");
    const std::uint64_t have = harness_.stat("slots_free") + harness_.stat("slots_doomed");
    const std::uint64_t promised =
        harness_.stat("slots_reserved") + harness_.stat("slots_checkpoint_reserve");
    std::string faults;
    if (all != space.total_blocks) faults += "the states do not sum up to all slots\n";
    if (space.free_blocks != (have > promised ? have - promised : 0))
      faults += "what df calls free is not what can be had\n";
    return faults;
  }

 protected:
  StoreHarness harness_{16 * kMiB};
};

TEST_F(StoreSpaceTest, AKeyThatFindsNoRoomInABatchFailsAndItsNeighboursSucceed) {
  ASSERT_TRUE(put("ballast", (free_blocks() - 40) * kBlockSizeBytes));
  const std::string small(100, 's');
  const std::string large(60 * kBlockSizeBytes, 'l');
  const std::vector<Put> puts{{"a", bytes_of(small)},
                              {"large", bytes_of(large)},
                              {"b", bytes_of(small)},
                              {"dir/c", bytes_of(small)}};
  const PutOutcome outcome = store().put_many(puts);
  EXPECT_THAT(words_of(outcome.results),
              ::testing::ElementsAre("ok", to_string(Errc::kNoSpace), "ok", "ok"));
  EXPECT_EQ(to_errno(outcome.results[1].error()), ENOSPC);
  EXPECT_FALSE(store().contains("large"));
  EXPECT_FALSE(store().exists_inflight("large"));
  expect_sums();
}

TEST_F(StoreSpaceTest, TheLastSlotCanBeFilledAndNotOneMore) {
  std::size_t stored = 0;
  ASSERT_TRUE(put("ballast", (free_blocks() - 30) * kBlockSizeBytes));
  while (put("k" + std::to_string(stored), kBlockSizeBytes)) ++stored;
  EXPECT_GE(stored, 25U) << "each key costs its slot and a little of the checkpoint";
  EXPECT_LE(free_blocks(), 1U);
  EXPECT_GE(harness_.stat("no_space"), 1U);
  expect_sums();
  harness_.reopen();
  EXPECT_TRUE(store().contains("k" + std::to_string(stored - 1)));
  EXPECT_EQ(store().list()->size(), stored + 1);
  expect_sums();
}

TEST_F(StoreSpaceTest, AfterRemovingEverythingAllOfItCanBeUsedAgainManyTimes) {
  const std::uint64_t room = free_blocks() - 8;
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(put("first", room / 2 * kBlockSizeBytes)) << round;
    ASSERT_TRUE(put("second", room / 2 * kBlockSizeBytes)) << round;
    EXPECT_FALSE(put("third", room / 2 * kBlockSizeBytes)) << round;
    ASSERT_TRUE(store().remove("first"));
    ASSERT_TRUE(store().remove("second"));
  }
  ASSERT_TRUE(store().flush());
  EXPECT_EQ(harness_.stat("slots_live"), 0U);
  expect_sums();
}

TEST_F(StoreSpaceTest, AFailedReplacementForLackOfSpaceKeepsTheOldValue) {
  ASSERT_TRUE(put("key", 5000));
  ASSERT_TRUE(put("ballast", (free_blocks() - 10) * kBlockSizeBytes));
  EXPECT_EQ(put("key", 50 * kBlockSizeBytes).error().code, Errc::kNoSpace);
  EXPECT_EQ(store().get("key"), value_of(5000, 5000));
  harness_.reopen();
  EXPECT_EQ(store().get("key"), value_of(5000, 5000));
}

TEST_F(StoreSpaceTest, AFullStoreStillRemovesRenamesAndCheckpoints) {
  std::size_t stored = 0;
  while (put("some/long/folder/" + std::string(200, 'n') + std::to_string(stored), 1)) ++stored;
  EXPECT_GT(stored, 1000U);
  EXPECT_TRUE(store().checkpoint()) << "room for it was kept";
  EXPECT_TRUE(store().rename("some/long/folder/" + std::string(200, 'n') + "0", "moved"));
  EXPECT_TRUE(store().remove("moved"));
  EXPECT_TRUE(store().flush());
  harness_.reopen();
  EXPECT_EQ(store().list()->size(), stored - 1) << "everything was in the checkpoint";
  expect_sums();
}

TEST_F(StoreSpaceTest, ReplacingValuesOfAFullStoreGoesOnForEver) {
  ASSERT_TRUE(put("ballast", (free_blocks() - 100) * kBlockSizeBytes));
  for (int i = 0; i < 500; ++i)
    ASSERT_TRUE(put("key" + std::to_string(i % 3), 10 * kBlockSizeBytes)) << i;
  expect_sums();
}

TEST_F(StoreSpaceTest, AfterABadSlotTheSlotsThatWaitForAFlushAreThereToo) {
  ASSERT_TRUE(put("removed", 24 * kBlockSizeBytes));
  ASSERT_TRUE(put("ballast", (free_blocks() - 6) * kBlockSizeBytes));
  ASSERT_TRUE(store().remove("removed"));
  store().volume().commit({});
  const std::uint64_t free_slots = harness_.stat("slots_free");
  ASSERT_EQ(harness_.stat("slots_doomed"), 24U);
  ASSERT_LE(free_slots, 16U);
  harness_.device().add_fault({.kind = OperationKind::kWrite,
                               .times = 2,  // with its neighbours, and alone
                               .offset_bytes = store().volume().geometry().slots_offset_bytes});
  EXPECT_TRUE(put("key", free_slots * kBlockSizeBytes)) << "all that is free, and all of it is bad";
  EXPECT_EQ(harness_.stat("slots_quarantined"), free_slots);
  EXPECT_TRUE(store().get("key"));
  expect_sums();
  EXPECT_TRUE(store().checkpoint()) << "its slots were left alone";
}

TEST(FullStore, WithoutRoomForACheckpointClosingMakesTheJournalDurable) {
  StoreHarness harness(16 * kMiB, 1 << 20);  // 13 slots
  const auto put = [&](const std::string& key) {
    return harness.store().put(key, bytes_of(key), {.durability = Durability::kWritten});
  };
  int stored = 0;
  while (put("k" + std::to_string(stored))) ++stored;
  ASSERT_GT(stored, 3);
  // What the checkpoint would go to is bad.
  harness.device().add_fault({.kind = OperationKind::kWrite,
                              .offset_bytes = harness.volume().geometry().slots_offset_bytes,
                              .size_bytes = 13 * kMiB});
  EXPECT_EQ(harness.store().checkpoint().error().code, Errc::kNoSpace);
  harness.device().clear_faults();
  for (int life = 0; life < 3; ++life) {
    harness.reopen();  // closes, and loses power
    EXPECT_EQ(harness.store().list()->size(), static_cast<std::size_t>(stored)) << life;
    ASSERT_TRUE(harness.store().remove("k" + std::to_string(--stored)));
    expect_slots_accounted(harness.volume());
  }
}

// There is room for some of them at a time; those that find none are told so at once.
TEST_F(StoreSpaceTest, ThreadsAtTheEdgeOfAFullStoreMakeProgress) {
  ASSERT_TRUE(put("ballast", (free_blocks() - 60) * kBlockSizeBytes));
  std::atomic<int> stored{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const std::string key = "thread" + std::to_string(t);
      for (int i = 0; i < 50; ++i) {
        const auto result = put(key, 10 * kBlockSizeBytes);
        EXPECT_TRUE(result || result.error().code == Errc::kNoSpace);
        if (!result) continue;
        ++stored;
        EXPECT_TRUE(store().remove(key));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(stored, 0);
  ASSERT_TRUE(store().flush());
  EXPECT_TRUE(put("after", 50 * kBlockSizeBytes));
  expect_sums();
}

// Each batch fails a random one of its writes, as a device that took a part of a batch.
TEST_F(StoreSpaceTest, NoFailureLeaksSlotsOrKeysInFlight) {
  for (std::uint64_t step = 0; step < 30; ++step) {
    harness_.device().add_fault({.kind = OperationKind::kWrite,
                                 .skip = step % 7,
                                 .times = 1 + step % 3,
                                 .offset_bytes = store().volume().geometry().slots_offset_bytes});
    std::vector<std::string> keys;
    std::vector<Put> puts;
    const std::string value(9000, 'v');
    for (int i = 0; i < 5; ++i) keys.push_back("k" + std::to_string(i));
    for (const std::string& key : keys) puts.push_back({key, bytes_of(value)});
    const auto outcome = store().put_many(puts);
    harness_.device().clear_faults();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (outcome.results[i]) {
        EXPECT_EQ(store().get(keys[i]), value);
      } else {
        EXPECT_EQ(outcome.results[i].error().code, Errc::kIo);
      }
      static_cast<void>(store().remove(keys[i]));
    }
    ASSERT_TRUE(store().flush());
    ASSERT_FALSE(store().volume().is_read_only());
    expect_sums();
  }
  EXPECT_EQ(harness_.stat("slots_live"), 0U);
}

TEST(StoreSpace, AsManyKeysOfTheLongestNameAsThereIsRoomForComeBack) {
  TracedStore store(13);
  store.open(make_device(16 * kMiB));
  bool is_full = false;
  std::size_t stored = 0;
  while (!is_full) {
    std::vector<std::string> names;
    std::vector<ContentChange> changes;
    for (int i = 0; i < 500; ++i) {
      std::string number = std::to_string(stored + static_cast<std::size_t>(i));
      names.push_back(std::string(255 - number.size(), 'n') + number);
    }
    for (const std::string& name : names)
      changes.push_back(change_for_put(store.volume(), name, {}));
    store.volume().commit(changes);
    for (const ContentChange& change : changes) {
      stored += change.result.has_value() ? 1 : 0;
      is_full |= !change.result;
      if (!change.result) {
        ASSERT_EQ(change.result.error().code, Errc::kNoSpace);
      }
    }
  }
  EXPECT_GT(stored, 15'000U);
  ASSERT_TRUE(store.volume().checkpoint());
  ASSERT_TRUE(store.volume().flush());
  for (const bool clean : {false, true}) {
    if (clean) {
      ASSERT_TRUE(store.volume().close());
    }
    ASSERT_TRUE(store.open(store.device().survivor(1, CrashMode::kNone)));
    EXPECT_EQ(stat_of(store.volume(), "nodes"), stored);
    expect_slots_accounted(store.volume());
  }
}

}  // namespace
}  // namespace kvslot::testing
