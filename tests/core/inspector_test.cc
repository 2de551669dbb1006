// What the engine tells about itself agrees with what it holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/engine.h"

namespace kvslot::testing {
namespace {

class InspectorTest : public ::testing::Test {
 protected:
  Volume& volume() { return harness_.volume(); }
  Inspector& inspector() { return harness_.volume().inspector(); }
  void put(std::string_view key, std::size_t size_bytes) {
    EXPECT_TRUE(put_key(volume(), key, value_of(size_bytes, size_bytes)));
  }
  std::vector<NodeRecord> all_nodes(std::size_t together) {
    std::vector<NodeRecord> all;
    std::uint32_t cursor = 0;
    while (true) {
      auto some = inspector().nodes(cursor, together);
      if (some.empty()) return all;
      EXPECT_LE(some.size(), together);
      std::move(some.begin(), some.end(), std::back_inserter(all));
    }
  }

  StoreHarness harness_{16 * kMiB};
};

TEST_F(InspectorTest, NodesListsEveryFileOnceWhateverThePortion) {
  std::set<std::string> expected;
  for (int i = 0; i < 300; ++i) {
    const std::string key = "dir" + std::to_string(i % 7) + "/file" + std::to_string(i);
    expected.insert(key);
    put(key, 100);
  }
  for (const std::size_t together : {1U, 7U, 1000U}) {
    std::multiset<std::string> found;
    for (const NodeRecord& record : all_nodes(together)) found.insert(record.key);
    EXPECT_EQ(found, std::multiset<std::string>(expected.begin(), expected.end()));
  }
}

TEST_F(InspectorTest, ANodeTellsItsSlotsAndTheSlotsTellTheNode) {
  put("large", 300'000);
  const auto record = inspector().node(volume().find("large")->node);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->size_bytes, 300'000U);
  EXPECT_EQ(record->slots, 74U);
  EXPECT_EQ(record->extent_count, 3U);
  std::uint32_t slots = 0;
  for (const SlotRun run : record->runs) {
    slots += run.count;
    const auto slot = inspector().slot(run.first);
    ASSERT_TRUE(slot);
    EXPECT_EQ(slot->owner, "large");
    EXPECT_TRUE(slot->owner_is_key);
    EXPECT_EQ(slot->state, SlotState::kLive);
  }
  EXPECT_EQ(slots, 74U);
  EXPECT_EQ(inspector().slot(SlotId{volume().geometry().slot_count}).error().code, Errc::kNotFound);
  EXPECT_EQ(inspector().node(NodeId{9999}).error().code, Errc::kNotFound);
}

TEST_F(InspectorTest, SlotsAreCoveredWithoutGapOrOverlapInEveryState) {
  put("live", 5000);
  put("gone", 5000);
  ASSERT_TRUE(volume().remove(NodeId::kRoot, "gone", RemoveKind::kNotDirectory));
  expect_slots_accounted(volume());
  ASSERT_TRUE(volume().checkpoint());
  ASSERT_TRUE(volume().checkpoint());
  expect_slots_accounted(volume());
  put("held", 5000);
  const auto held = volume().lookup(NodeId::kRoot, "held", true);
  ASSERT_TRUE(volume().remove(NodeId::kRoot, "held", RemoveKind::kNotDirectory));
  expect_slots_accounted(volume());
  volume().release(held->node);
  ASSERT_TRUE(volume().flush());
  expect_slots_accounted(volume());
}

TEST_F(InspectorTest, PutsInFlightAreListedWhileTheDeviceIsBusy) {
  harness_.device().hold(OperationKind::kWrite);
  std::thread writer([&] { put("folder/key", 5000); });
  harness_.device().wait_until_held(1);
  const auto inflight = inspector().inflight();
  ASSERT_EQ(inflight.size(), 1U);
  EXPECT_EQ(inflight[0].key, "folder/key");
  EXPECT_EQ(inflight[0].slots, 2U);
  EXPECT_EQ(inflight[0].bytes, 5000U);
  EXPECT_EQ(harness_.stat("puts_inflight"), 1U);
  harness_.device().release();
  writer.join();
  EXPECT_TRUE(inspector().inflight().empty());
}

TEST_F(InspectorTest, BatchesAreKeptOldestFirstAndBounded) {
  for (int i = 0; i < 300; ++i) put("key", 10);
  const auto batches = inspector().batches();
  ASSERT_EQ(batches.size(), 256U);
  for (std::size_t i = 1; i < batches.size(); ++i) EXPECT_GT(batches[i].id, batches[i - 1].id);
  EXPECT_EQ(batches.back().keys, 1U);
  EXPECT_EQ(batches.back().failures, 0U);
}

TEST_F(InspectorTest, ReportedFaultsAreKeptAndBounded) {
  for (int i = 0; i < 300; ++i)
    inspector().report_fault({.time_ns = 0,
                              .operation = "test",
                              .key = std::to_string(i),
                              .slot = {},
                              .os_errno = 5,
                              .action = "none"});
  const auto faults = inspector().faults();
  ASSERT_EQ(faults.size(), 256U);
  EXPECT_EQ(faults.back().key, "299");
  EXPECT_NE(faults.back().time_ns, 0);
}

TEST_F(InspectorTest, EveryNumberHasANameOfItsOwnAndAHelp) {
  std::set<std::string> names;
  for (const Stat& stat : inspector().stats()) {
    EXPECT_TRUE(names.insert(stat.name).second) << stat.name;
    EXPECT_GT(std::string(stat.help).size(), 3U) << stat.name;
  }
}

TEST_F(InspectorTest, NumbersFollowWhatHappens) {
  put("a", 5000);
  put("b", 100);
  ASSERT_TRUE(read_key(volume(), "a"));
  ASSERT_TRUE(volume().rename(NodeId::kRoot, "a", NodeId::kRoot, "c", RenameMode::kReplace));
  ASSERT_TRUE(volume().remove(NodeId::kRoot, "b", RemoveKind::kNotDirectory));
  ASSERT_TRUE(volume().flush());
  EXPECT_EQ(harness_.stat("puts"), 2U);
  EXPECT_EQ(harness_.stat("gets"), 1U);
  EXPECT_EQ(harness_.stat("renames"), 1U);
  EXPECT_EQ(harness_.stat("removes"), 1U);
  EXPECT_EQ(harness_.stat("nodes"), 1U);
  EXPECT_EQ(harness_.stat("slots_live"), 2U);
  EXPECT_EQ(harness_.stat("bytes_live"), 8192U);
  EXPECT_EQ(harness_.stat("unflushed_bytes"), 0U);
  EXPECT_EQ(harness_.stat("recorded_bytes"), 0U);
}

}  // namespace
}  // namespace kvslot::testing
