// Checkpoints: complete whatever goes on meanwhile, bounded in cost, never too large to fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "core/put_changes.h"
#include "tests/support/engine.h"
#include "tests/support/model_store.h"

namespace kvslot::testing {
namespace {

class CheckpointTest : public ::testing::Test {
 protected:
  Volume& volume() { return harness_.volume(); }
  void put(std::string_view key, std::string_view value) {
    const auto stored = put_key(volume(), key, value);
    EXPECT_TRUE(stored) << stored.error().step;
  }

  StoreHarness harness_{16 * kMiB};
};

TEST_F(CheckpointTest, ACheckpointEmptiesTheJournalAndHoldsEverything) {
  for (int i = 0; i < 500; ++i) put("folder/" + std::to_string(i), std::to_string(i));
  EXPECT_GT(harness_.stat("journal_used_bytes"), 0U);
  ASSERT_TRUE(volume().checkpoint());
  EXPECT_LE(harness_.stat("journal_used_bytes"), kBlockSizeBytes);
  harness_.crash();
  for (int i = 0; i < 500; ++i)
    EXPECT_EQ(read_key(volume(), "folder/" + std::to_string(i)), std::to_string(i));
}

TEST_F(CheckpointTest, AnEmptyStoreCanBeCheckpointedOverAndOver) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(volume().checkpoint());
  expect_slots_accounted(volume());
  harness_.reopen();
  ASSERT_TRUE(volume().checkpoint());
  EXPECT_LE(harness_.stat("slots_checkpoint"), 8U) << "older ones were given back";
}

// A journal so large that it asks for none, in a store that writes none by itself.
TEST(CheckpointSpaceTest, WhenKeysGoTheSpaceOfTheirCheckpointsComesBack) {
  auto device = std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{.size_bytes = 2 * kGiB});
  ASSERT_TRUE(format_device(*device, {}));
  const auto opened = Volume::open(std::move(device), {.inline_checkpoints = false, .seed = 1});
  ASSERT_TRUE(opened) << opened.error().step;
  Volume& volume = **opened;
  const std::uint64_t before = volume.space().free_blocks;
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(put_key(volume, "k" + std::to_string(i), ""));
  ASSERT_TRUE(volume.checkpoint());
  ASSERT_TRUE(volume.checkpoint());
  EXPECT_LT(volume.space().free_blocks, before - 60);
  EXPECT_FALSE(volume.wants_checkpoint());
  for (int i = 0; i < 2000; ++i)
    ASSERT_TRUE(volume.remove(NodeId::kRoot, "k" + std::to_string(i), RemoveKind::kNotDirectory));
  ASSERT_TRUE(volume.flush());
  EXPECT_TRUE(volume.wants_checkpoint()) << "the one there is outgrown";
  ASSERT_TRUE(volume.checkpoint());
  EXPECT_FALSE(volume.wants_checkpoint());
  EXPECT_GE(volume.space().free_blocks + 16, before);
  expect_slots_accounted(volume);
}

TEST_F(CheckpointTest, WhileAWriteIsPendingNothingIsLostOrLeaked) {
  put("before", "1");
  harness_.device().hold(OperationKind::kWrite);
  std::thread writer([&] { put("pending", std::string(100'000, 'p')); });
  harness_.device().wait_until_held(1);
  std::thread checkpointer([&] { EXPECT_TRUE(volume().checkpoint()); });
  harness_.device().release();
  writer.join();
  checkpointer.join();
  ASSERT_TRUE(volume().flush());
  expect_slots_accounted(volume());
  harness_.crash();
  EXPECT_EQ(read_key(volume(), "pending"), std::string(100'000, 'p'));
  EXPECT_EQ(read_key(volume(), "before"), "1");
  expect_slots_accounted(volume());
}

// The image is taken in portions while names and values change under it.
TEST_F(CheckpointTest, ImagesTakenDuringChangesRecoverToTheLastState) {
  for (int i = 0; i < 3000; ++i) put("k" + std::to_string(i), "old");
  std::atomic<bool> done{false};
  std::thread checkpointer([&] {
    while (!done) EXPECT_TRUE(volume().checkpoint());
  });
  for (int i = 0; i < 400; ++i) {
    const std::string key = "k" + std::to_string(i * 7);
    put(key, "new " + std::to_string(i));
    if (i % 3 == 0) {
      EXPECT_TRUE(volume().remove(NodeId::kRoot, "k" + std::to_string(2999 - i),
                                  RemoveKind::kNotDirectory));
    }
    if (i % 5 == 0) {
      EXPECT_TRUE(volume().rename(NodeId::kRoot, key, NodeId::kRoot, "m" + std::to_string(i),
                                  RenameMode::kReplace));
    }
  }
  done = true;
  checkpointer.join();
  ASSERT_TRUE(volume().flush());
  const auto before = ModelStore::read_from(volume());
  harness_.crash();
  const auto after = ModelStore::read_from(volume());
  ASSERT_TRUE(before && after);
  EXPECT_EQ(before->difference(*after), "");
  expect_slots_accounted(volume());
}

TEST_F(CheckpointTest, BytesWrittenForMetadataPerPutDoNotGrowWithTheNumberOfKeys) {
  StoreHarness large(256 * kMiB);
  std::vector<std::uint64_t> per_thousand;
  int key = 0;
  for (int stretch = 0; stretch < 10; ++stretch) {
    const std::uint64_t before = stat_of(large.volume(), "journal_bytes");
    for (int i = 0; i < 10; ++i) {
      std::vector<std::string> names;
      std::vector<ContentChange> changes;
      for (int n = 0; n < 100; ++n) names.push_back("k" + std::to_string(key++));
      for (const std::string& name : names)
        changes.push_back(change_for_put(large.volume(), name, {}));
      large.volume().commit(changes);
    }
    per_thousand.push_back(stat_of(large.volume(), "journal_bytes") - before);
  }
  EXPECT_LE(per_thousand.back(), per_thousand.front() * 11 / 10);
  EXPECT_EQ(stat_of(large.volume(), "checkpoints"), 0U) << "half the journal triggers the first";
}

TEST_F(CheckpointTest, AHiddenFileIsInTheCheckpointThatIsTakenMeanwhile) {
  put("a", "old");
  ASSERT_TRUE(volume().create(NodeId::kRoot, "new", NodeKind::kFile, {}));
  ASSERT_TRUE(volume().rename(NodeId::kRoot, "new", NodeId::kRoot, "a", RenameMode::kReplace));
  ASSERT_TRUE(volume().checkpoint());
  harness_.crash();
  EXPECT_EQ(read_key(volume(), "a"), "old");
}

TEST_F(CheckpointTest, WithLargeSlotsChunksFitTheSlots) {
  for (const std::uint32_t slot_size : {4096U, 65536U, 1U << 20, 4U << 20}) {
    StoreHarness harness(256 * kMiB, slot_size);
    std::vector<std::string> names;
    std::vector<ContentChange> changes;
    for (int i = 0; i < 3000; ++i) names.push_back(std::string(200, 'n') + std::to_string(i));
    for (const std::string& name : names)
      changes.push_back(change_for_put(harness.volume(), name, {}));
    harness.volume().commit(changes);
    ASSERT_TRUE(harness.volume().checkpoint()) << slot_size;
    harness.crash();
    EXPECT_EQ(harness.stat("nodes"), 3000U) << slot_size;
    expect_slots_accounted(harness.volume());
  }
}

}  // namespace
}  // namespace kvslot::testing
