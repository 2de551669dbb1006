// The scrub finds what rotted, and nothing else, whatever happens to the values meanwhile.
#include <gtest/gtest.h>
#include <kvslot/scrub.h>
#include <kvslot/volume.h>

#include <cerrno>
#include <future>
#include <map>
#include <random>
#include <string>

#include "tests/support/engine.h"

namespace kvslot::testing {
namespace {

class ScrubTest : public ::testing::Test {
 protected:
  Volume& volume() { return harness_.volume(); }
  SimulatedDevice& device() { return harness_.device(); }
  void put(const std::string& key, std::size_t size_bytes, std::uint64_t seed = 1) {
    ASSERT_TRUE(put_key(volume(), key, value_of(seed, size_bytes))) << key;
  }
  // A whole pass.
  ScrubProgress scrub() {
    Scrub pass(volume());
    while (true) {
      const auto more = pass.step();
      EXPECT_TRUE(more) << more.error().step;
      if (!more || !*more) return pass.progress();
    }
  }
  Extent extent_of(const std::string& key, std::size_t number = 0) {
    return volume().inspector().node(volume().find(key)->node)->extents.at(number);
  }
  std::uint64_t place_of(const Extent& extent) {
    return std::uint64_t{extent.device_block} * kBlockSizeBytes;
  }
  void rot(const std::string& key) { device().flip_bit(place_of(extent_of(key)) + 10, 3); }

  StoreHarness harness_{32 * kMiB};
};

TEST_F(ScrubTest, VerifiesEveryValueOnce) {
  EXPECT_EQ(scrub().extents, 0U);
  put("small", 100);
  put("dir/large", 3'000'000);
  put("empty", 0);
  const ScrubProgress progress = scrub();
  EXPECT_EQ(progress.files, 3U);
  EXPECT_EQ(progress.bytes, 3'000'100U);
  EXPECT_EQ(progress.extents, 24U);
  EXPECT_EQ(progress.corrupt, 0U);
  EXPECT_EQ(harness_.stat("scrubs"), 2U);
  EXPECT_EQ(harness_.stat("scrubbed_bytes"), 3'000'100U);
  EXPECT_TRUE(volume().inspector().faults().empty());
}

TEST_F(ScrubTest, ReportsWhatRottedAndLeavesItAsItIs) {
  for (int i = 0; i < 10; ++i) put("key" + std::to_string(i), 20'000);
  put("dir/bad", 20'000);
  rot("dir/bad");
  const Extent extent = extent_of("dir/bad");
  std::vector<std::byte> before(20'480);
  device().peek(place_of(extent), before);
  device().clear_calls();
  for (std::uint64_t pass = 1; pass <= 2; ++pass) {
    const ScrubProgress progress = scrub();
    EXPECT_EQ(progress.corrupt, 1U);
    EXPECT_EQ(progress.extents, 11U);
    EXPECT_EQ(harness_.stat("scrub_corrupt"), pass);
  }
  const auto faults = volume().inspector().faults();
  ASSERT_EQ(faults.size(), 2U);
  EXPECT_EQ(faults[0].operation, "scrub");
  EXPECT_EQ(faults[0].key, "dir/bad");
  EXPECT_EQ(faults[0].os_errno, EIO);
  ASSERT_TRUE(faults[0].slot);
  EXPECT_EQ(volume().inspector().slot(*faults[0].slot)->owner, "dir/bad");
  for (const DeviceCall& call : device().calls()) EXPECT_EQ(call.writes, 0U);
  std::vector<std::byte> after(20'480);
  device().peek(place_of(extent), after);
  EXPECT_EQ(before, after);
  EXPECT_EQ(extent_of("dir/bad"), extent) << "no fresh checksum";
  EXPECT_FALSE(read_key(volume(), "dir/bad"));
}

TEST_F(ScrubTest, AWrongReadIsReadAgainAndAFailedOneIsReported) {
  put("key", 20'000);
  device().add_fault({.kind = OperationKind::kRead, .times = 1, .error = 0, .flips_bit = true});
  EXPECT_EQ(scrub().corrupt, 0U);
  device().clear_faults();
  device().add_fault({.kind = OperationKind::kRead, .times = 1});
  EXPECT_EQ(scrub().unreadable, 0U);
  device().clear_faults();
  device().add_fault({.kind = OperationKind::kRead});
  EXPECT_EQ(scrub().unreadable, 1U);
  EXPECT_EQ(volume().inspector().faults().size(), 1U);
  EXPECT_FALSE(volume().is_read_only());
}

TEST_F(ScrubTest, ADeviceThatIsGoneEndsThePass) {
  put("key", 20'000);
  device().crash_after_operations(0);
  Scrub pass(volume());
  const auto more = pass.step();
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Errc::kIo);
  EXPECT_TRUE(volume().is_read_only());
}

TEST_F(ScrubTest, AStepIsBounded) {
  put("large", 10'000'000);
  device().clear_calls();
  scrub();
  for (const DeviceCall& call : device().calls())
    EXPECT_LE(call.size_bytes, kScrubStepBytesMax + kExtentSizeBytesMax);
  EXPECT_GE(device().calls().size(), 10U);
}

// Rots the old bytes while they are read and no longer the value's: no finding.
TEST_F(ScrubTest, WhatIsReplacedRemovedOrPatchedWhileItIsReadIsNoFinding) {
  const std::map<std::string, std::function<void()>> changes = {
      {"replaced", [&] { put("key", 20'000, 2); }},
      {"removed",
       [&] {
         ASSERT_TRUE(volume().remove(NodeId::kRoot, "key", RemoveKind::kNotDirectory));
         ASSERT_TRUE(volume().flush());
       }},
      {"patched",
       [&] {
         ContentChange change;
         change.node = volume().find("key")->node;
         change.size_bytes = 20'000;
         WindowWrite write{.window = 0, .size_bytes = 20'000, .data = Buffer::from_heap(20'480)};
         change.writes.push_back(std::move(write));
         volume().commit({&change, 1});
         ASSERT_TRUE(change.result);
       }},
  };
  for (const auto& [name, change] : changes) {
    put("key", 20'000);
    const Extent extent = extent_of("key");
    device().hold(OperationKind::kRead);
    auto pass = std::async(std::launch::async, [&] { return scrub(); });
    device().wait_until_held(1);
    change();
    device().flip_bit(place_of(extent) + 10, 3);
    device().release();
    EXPECT_EQ(pass.get().corrupt, 0U) << name;
    EXPECT_TRUE(volume().inspector().faults().empty()) << name;
  }
}

TEST_F(ScrubTest, SlotsThatAreBeingReadAreNotUsedAgain) {
  put("key", 20'000);
  const Extent extent = extent_of("key");
  device().hold(OperationKind::kRead);
  auto pass = std::async(std::launch::async, [&] { return scrub(); });
  device().wait_until_held(1);
  ASSERT_TRUE(volume().remove(NodeId::kRoot, "key", RemoveKind::kNotDirectory));
  ASSERT_TRUE(volume().flush());
  for (int i = 0; i < 800; ++i) {
    put("other", 20'000, 3);
    ASSERT_NE(extent_of("other").device_block, extent.device_block);
    if (i % 100 == 0) {
      ASSERT_TRUE(volume().flush());
    }
  }
  device().release();
  EXPECT_EQ(pass.get().corrupt, 0U);
}

TEST_F(ScrubTest, AClosedStoreEndsThePass) {
  put("large", 5'000'000);
  Scrub pass(volume());
  ASSERT_TRUE(pass.step().value_or(false));
  ASSERT_TRUE(harness_.store().close());
  const auto more = pass.step();
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Errc::kBusy);
}

// Steps between random changes: nothing that is well is called damaged, and a pass ends.
TEST_F(ScrubTest, FindsNothingInAStoreThatChangesBetweenItsSteps) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 30; ++i) put("key" + std::to_string(i), random() % 400'000, seed);
    Scrub pass(volume());
    std::size_t steps = 0;
    for (bool more = true; more; ++steps) {
      ASSERT_LT(steps, 1000U);
      const auto stepped = pass.step();
      ASSERT_TRUE(stepped);
      more = *stepped;
      const std::string key = "key" + std::to_string(random() % 30);
      if (random() % 3 == 0)
        static_cast<void>(volume().remove(NodeId::kRoot, key, RemoveKind::kNotDirectory));
      else
        put(key, random() % 400'000, random());
      if (random() % 4 == 0) {
        ASSERT_TRUE(volume().flush());
      }
    }
    EXPECT_EQ(pass.progress().corrupt, 0U) << "seed " << seed;
    EXPECT_GT(pass.progress().extents, 0U);
  }
  EXPECT_TRUE(volume().inspector().faults().empty());
}

}  // namespace
}  // namespace kvslot::testing
