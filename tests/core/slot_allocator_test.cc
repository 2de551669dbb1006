// Which slots are free, and when a freed one may be used again.
#include "core/slot_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace kvslot {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

SlotRun run(std::uint32_t first, std::uint32_t count) { return {SlotId{first}, count}; }
std::uint32_t first_of(SlotRun taken) { return static_cast<std::uint32_t>(taken.first); }

SlotRun take_one_run(SlotAllocator& slots, std::uint32_t count) {
  std::vector<SlotRun> runs;
  EXPECT_TRUE(slots.take(count, runs));
  EXPECT_THAT(runs, SizeIs(1));
  return runs.empty() ? SlotRun{} : runs.front();
}

TEST(SlotAllocator, TakesOneRunWhereThereIsOne) {
  SlotAllocator slots(1000);
  EXPECT_EQ(take_one_run(slots, 700), run(0, 700));
  EXPECT_EQ(slots.free_count(), 300U);
  EXPECT_EQ(take_one_run(slots, 300), run(700, 300));
  EXPECT_EQ(slots.free_count(), 0U);
}

TEST(SlotAllocator, TakesAllOrNothing) {
  SlotAllocator slots(10);
  std::vector<SlotRun> runs;
  EXPECT_FALSE(slots.take(11, runs));
  EXPECT_THAT(runs, IsEmpty());
  EXPECT_EQ(slots.free_count(), 10U);
  EXPECT_TRUE(slots.take(0, runs));
  EXPECT_THAT(runs, IsEmpty());
  EXPECT_EQ(take_one_run(slots, 10), run(0, 10));
  EXPECT_EQ(slots.take_some(5).count, 0U);
}

TEST(SlotAllocator, RotatesThroughFreeSpaceInsteadOfUsingTheLastFreedAgain) {
  SlotAllocator slots(100);
  const SlotRun first = take_one_run(slots, 10);
  slots.give_back(first);
  EXPECT_EQ(take_one_run(slots, 10), run(10, 10));
  for (std::uint32_t at = 20; at < 100; at += 10) EXPECT_EQ(first_of(take_one_run(slots, 10)), at);
  EXPECT_EQ(take_one_run(slots, 10), first) << "round once";
}

TEST(SlotAllocator, FragmentedSpaceIsTakenInPieces) {
  SlotAllocator slots(64 * 3);
  take_one_run(slots, 64 * 3);
  for (std::uint32_t slot = 0; slot < 192; slot += 2) slots.give_back(run(slot, 1));
  std::vector<SlotRun> runs;
  EXPECT_TRUE(slots.take(96, runs));
  std::set<std::uint32_t> taken;
  for (const SlotRun piece : runs)
    for (std::uint32_t i = 0; i < piece.count; ++i)
      EXPECT_TRUE(taken.insert(first_of(piece) + i).second);
  EXPECT_THAT(taken, SizeIs(96));
  EXPECT_EQ(slots.free_count(), 0U);
}

TEST(SlotAllocator, ALongRunIsFoundAgainOnceOneWasFreed) {
  SlotAllocator slots(100);
  take_one_run(slots, 100);
  for (std::uint32_t slot = 0; slot < 40; slot += 2) slots.give_back(run(slot, 1));
  std::vector<SlotRun> runs;
  EXPECT_TRUE(slots.take(2, runs));
  EXPECT_THAT(runs, SizeIs(2)) << "no run of two was free, and that is remembered";
  slots.give_back(run(60, 8));
  EXPECT_EQ(take_one_run(slots, 8), run(60, 8));
}

TEST(SlotAllocator, DoomedSlotsReturnWhenTheirBlockIsDurableAndReadersHaveLeft) {
  SlotAllocator slots(100);
  take_one_run(slots, 100);
  slots.doom(run(0, 10), 5, 3);
  slots.doom(run(10, 10), 6, 7);
  EXPECT_EQ(slots.doomed_count(), 20U);
  slots.reclaim(4, UINT64_MAX);
  EXPECT_EQ(slots.free_count(), 0U) << "block 5 is not durable";
  slots.reclaim(6, 3);
  EXPECT_EQ(slots.free_count(), 0U) << "reader 3 may still be on them";
  slots.reclaim(6, 4);
  EXPECT_EQ(slots.free_count(), 10U);
  EXPECT_TRUE(slots.is_free(9));
  EXPECT_FALSE(slots.is_free(10));
  slots.reclaim(6, UINT64_MAX);
  EXPECT_EQ(slots.doomed_count(), 0U);
  EXPECT_EQ(slots.free_count(), 20U);
}

TEST(SlotAllocator, PromisesCountDoomedSlotsAndTheCheckpointReserve) {
  SlotAllocator slots(100);
  slots.set_checkpoint_reserve(10);
  EXPECT_EQ(slots.available_count(), 90U);
  EXPECT_TRUE(slots.reserve(50));
  EXPECT_EQ(slots.reserve(41).error().code, Errc::kNoSpace);
  EXPECT_TRUE(slots.reserve(40));
  EXPECT_EQ(slots.available_count(), 0U);
  slots.unreserve(90);
  slots.doom(take_one_run(slots, 60), 1, 0);
  EXPECT_EQ(slots.available_count(), 90U) << "what is on its way back can be promised";
}

TEST(SlotAllocator, ClaimRefusesSlotsTwiceAndSlotsThatDoNotExist) {
  SlotAllocator slots(100);
  EXPECT_TRUE(slots.claim(run(10, 5)));
  EXPECT_FALSE(slots.claim(run(14, 1)));
  EXPECT_FALSE(slots.claim(run(8, 3)));
  EXPECT_FALSE(slots.claim(run(99, 2)));
  EXPECT_FALSE(slots.claim(run(UINT32_MAX, 2)));
  EXPECT_TRUE(slots.claim(run(99, 1)));
  EXPECT_EQ(slots.free_count(), 94U);
}

TEST(SlotAllocator, QuarantinedSlotsNeverComeBack) {
  SlotAllocator slots(10);
  slots.quarantine(take_one_run(slots, 2));
  EXPECT_EQ(slots.quarantined_count(), 2U);
  slots.reclaim(UINT64_MAX, UINT64_MAX);
  EXPECT_EQ(take_one_run(slots, 8), run(2, 8));
}

TEST(SlotAllocatorDeathTest, ASlotIsFreedOnce) {
  SlotAllocator slots(10);
  EXPECT_DEATH(slots.give_back(run(3, 1)), "freed once");
  EXPECT_DEATH(slots.unreserve(1), "given back once");
}

// Against a set of slot numbers, over group and word boundaries.
TEST(SlotAllocator, RandomTakesAndReturnsNeverOverlapAndLoseNothing) {
  constexpr std::uint32_t kCount = 10'007;
  SlotAllocator slots(kCount);
  std::mt19937_64 random(1);
  std::vector<SlotRun> held;
  std::set<std::uint32_t> taken;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 || held.empty()) {
      std::vector<SlotRun> runs;
      const auto count = static_cast<std::uint32_t>(random() % 200 + 1);
      const bool fits = count <= kCount - taken.size();
      ASSERT_EQ(slots.take(count, runs), fits);
      for (const SlotRun piece : runs) {
        held.push_back(piece);
        for (std::uint32_t i = 0; i < piece.count; ++i)
          ASSERT_TRUE(taken.insert(first_of(piece) + i).second) << "slot taken twice";
      }
    } else {
      std::swap(held[random() % held.size()], held.back());
      for (std::uint32_t i = 0; i < held.back().count; ++i) taken.erase(first_of(held.back()) + i);
      slots.give_back(held.back());
      held.pop_back();
    }
    ASSERT_EQ(slots.free_count(), kCount - taken.size());
  }
}

}  // namespace
}  // namespace kvslot
