// Disjoint ranges: what fs/range_set.h promises.
#include "fs/range_set.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kvslot {
namespace {

TEST(RangeSet, JoinsRangesThatOverlapOrTouch) {
  RangeSet set;
  set.add(10, 20);
  set.add(30, 40);
  set.add(20, 25);
  EXPECT_EQ(set.ranges(), (std::vector<Range>{{10, 25}, {30, 40}}));
  set.add(5, 35);
  EXPECT_EQ(set.ranges(), (std::vector<Range>{{5, 40}}));
  set.add(50, 50);
  EXPECT_EQ(set.ranges().size(), 1U);
}

TEST(RangeSet, GapsAreWhatIsOutside) {
  RangeSet set;
  set.add(10, 20);
  set.add(30, 40);
  EXPECT_EQ(set.gaps(0, 50), (std::vector<Range>{{0, 10}, {20, 30}, {40, 50}}));
  EXPECT_EQ(set.gaps(12, 35), (std::vector<Range>{{20, 30}}));
  EXPECT_TRUE(set.gaps(12, 18).empty());
  EXPECT_TRUE(set.covers(30, 40));
  EXPECT_FALSE(set.covers(29, 40));
  EXPECT_TRUE(set.covers(25, 25));
}

TEST(RangeSet, ClipForgetsWhatIsPastTheEnd) {
  RangeSet set;
  set.add(10, 20);
  set.add(30, 40);
  set.clip(35);
  EXPECT_EQ(set.ranges(), (std::vector<Range>{{10, 20}, {30, 35}}));
  set.clip(10);
  EXPECT_TRUE(set.empty());
}

TEST(RangeSet, AgreesWithABitmap) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    RangeSet set;
    std::vector<bool> bits(64);
    for (int step = 0; step < 20; ++step) {
      const std::size_t begin = random() % 64;
      const std::size_t end = begin + random() % (65 - begin);
      set.add(begin, end);
      for (std::size_t at = begin; at < end; ++at) bits[at] = true;
      const std::size_t from = random() % 64;
      const std::size_t to = from + random() % (65 - from);
      std::vector<bool> outside(64);
      for (const Range& gap : set.gaps(from, to)) {
        for (std::uint64_t at = gap.begin; at < gap.end; ++at) outside[at] = true;
      }
      for (std::size_t at = from; at < to; ++at) ASSERT_EQ(outside[at], !bits[at]) << at;
    }
  }
}

}  // namespace
}  // namespace kvslot
