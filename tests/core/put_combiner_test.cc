// Synchronous puts of many threads: who leads, who waits, and what a failure concerns.
#include "core/put_combiner.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "core/put_changes.h"
#include "tests/support/engine.h"

namespace kvslot::testing {
namespace {

class PutCombinerTest : public ::testing::Test {
 protected:
  // A put on a thread of its own.
  struct Caller {
    ContentChange change;
    std::string key;
    std::thread thread;
  };
  void start(Caller& caller, const std::string& key, std::string_view value,
             Durability durability) {
    caller.key = key;
    caller.change = change_for_put(harness_.volume(), caller.key, bytes_of(value));
    caller.thread =
        std::thread([&, durability] { combiner_.run({&caller.change, 1}, durability); });
  }
  // The first put is at the device and `count` others have come.
  void start_behind_a_held_put(std::vector<Caller>& callers, Durability durability,
                               const std::string& key_prefix) {
    harness_.device().hold(OperationKind::kWrite);
    start(callers[0], key_prefix + "0", "leader", durability);
    harness_.device().wait_until_held(1);
    for (std::size_t i = 1; i < callers.size(); ++i)
      start(callers[i], key_prefix + std::to_string(i), "value " + std::to_string(i), durability);
    while (combiner_.waiting_count() != callers.size() - 1) std::this_thread::yield();
  }
  static void join(std::vector<Caller>& callers) {
    for (Caller& caller : callers) caller.thread.join();
  }

  StoreHarness harness_;
  PutCombiner combiner_{harness_.volume()};
};

TEST_F(PutCombinerTest, PutsThatComeDuringACommitBecomeOneBatchWithOneFlush) {
  std::vector<Caller> callers(33);
  start_behind_a_held_put(callers, Durability::kDurable, "k");
  const std::uint64_t batches = harness_.stat("batches");
  const std::uint64_t flushes = harness_.device().counters().flushes;
  harness_.device().release();
  join(callers);
  for (const Caller& caller : callers) EXPECT_TRUE(caller.change.result) << caller.key;
  EXPECT_EQ(harness_.stat("batches") - batches, 2U);
  EXPECT_LE(harness_.device().counters().flushes - flushes, 2U);
  harness_.crash();
  for (const Caller& caller : callers) EXPECT_TRUE(harness_.store().contains(caller.key));
}

TEST_F(PutCombinerTest, PutsOfOneKeyAreOrderedAndAllSucceed) {
  std::vector<Caller> callers(9);
  harness_.device().hold(OperationKind::kWrite);
  start(callers[0], "key", "value 0", Durability::kWritten);
  harness_.device().wait_until_held(1);
  for (std::size_t i = 1; i < callers.size(); ++i) {
    start(callers[i], "key", "value " + std::to_string(i), Durability::kWritten);
    while (combiner_.waiting_count() != i) std::this_thread::yield();
  }
  harness_.device().release();
  join(callers);
  for (const Caller& caller : callers) EXPECT_TRUE(caller.change.result);
  EXPECT_EQ(harness_.store().get("key"), "value 8") << "the last to come wins";
  expect_slots_accounted(harness_.volume());
}

TEST_F(PutCombinerTest, AFailedFlushIsTheResultOfEveryoneWhoWaitedForIt) {
  std::vector<Caller> callers(4);
  start_behind_a_held_put(callers, Durability::kDurable, "k");
  harness_.device().add_fault({.kind = OperationKind::kFlush});
  harness_.device().release();
  join(callers);
  for (const Caller& caller : callers) EXPECT_FALSE(caller.change.result) << caller.key;
  EXPECT_TRUE(harness_.volume().is_read_only());
}

TEST_F(PutCombinerTest, ManyThreadsPutAndReadWhatTheyPut) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string key = std::to_string(t) + "/" + std::to_string(i % 10);
        const std::string value = value_of(static_cast<std::uint64_t>(t * 100 + i), 5000);
        EXPECT_TRUE(
            harness_.store().put(key, bytes_of(value), {.durability = Durability::kWritten}));
        EXPECT_EQ(harness_.store().get(key), value);
        if (i % 7 == 0) {
          EXPECT_TRUE(harness_.store().remove(key));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(harness_.store().flush());
  expect_slots_accounted(harness_.volume());
}

}  // namespace
}  // namespace kvslot::testing
