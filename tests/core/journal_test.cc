// The ring: where blocks go, when it is full, and where a chain of blocks ends.
#include "core/journal.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/device_io.h"
#include "tests/support/engine.h"

namespace kvslot::testing {
namespace {

constexpr std::uint64_t kBlock = kBlockSizeBytes;

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() {
    geometry_ = *plan_geometry(16 * kMiB, 4096, 512);
    geometry_.journal_size_bytes = 10 * kBlock;
    start_ = {.epoch = 7, .offset_bytes = 4 * kBlock, .sequence = 1, .previous_hash = 3};
    ring_ = std::make_unique<JournalRing>(geometry_.journal_size_bytes, start_);
  }
  // Writes a block where the ring wants it; false when there is no room.
  bool append(std::uint64_t blocks) {
    const auto place = ring_->place(blocks * kBlock);
    if (!place) return false;
    const Buffer buffer = Buffer::from_heap(blocks * kBlock);
    const Bytes block = buffer.first(blocks * kBlock);
    std::fill(block.begin(), block.end(), std::byte{0});
    JournalHeader header{.payload_bytes = 0,
                         .epoch = ring_->head().epoch,
                         .sequence = ring_->head().sequence,
                         .previous_hash = ring_->head().previous_hash};
    seal_journal_block(block, header, geometry_.uuid);
    EXPECT_TRUE(write_device(device_, geometry_.journal_offset_bytes + *place, block));
    ring_->advance(*place, header);
    return true;
  }
  std::vector<std::uint64_t> sequences_from(const JournalPosition& from) {
    std::vector<std::uint64_t> sequences;
    const auto end =
        read_journal(device_, geometry_, from, [&](const JournalBlock& block) -> Result<bool> {
          sequences.push_back(block.header.sequence);
          return true;
        });
    EXPECT_TRUE(end);
    if (end) end_ = *end;
    return sequences;
  }
  void flip(std::uint64_t block) {
    device_.flip_bit(geometry_.journal_offset_bytes + block * kBlock + 100, 0);
  }

  SimulatedDevice device_{{.size_bytes = 16 * kMiB}};
  Geometry geometry_;
  JournalPosition start_;
  JournalPosition end_;
  std::unique_ptr<JournalRing> ring_;
};

TEST_F(JournalTest, BlocksFollowEachOtherAndABlockThatDoesNotFitStartsAtTheFront) {
  EXPECT_TRUE(append(2));  // 4, 5
  EXPECT_TRUE(append(3));  // 6, 7, 8
  EXPECT_EQ(ring_->head().offset_bytes, 9 * kBlock);
  EXPECT_TRUE(append(2));  // not at 9: 0, 1
  EXPECT_EQ(ring_->head().offset_bytes, 2 * kBlock);
  EXPECT_EQ(ring_->used_bytes(), 8 * kBlock) << "the one that was left out counts";
  EXPECT_EQ(sequences_from(start_), (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(end_, ring_->head());
}

TEST_F(JournalTest, AFullRingRefusesAndAReleaseMakesRoom) {
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(append(1)) << i;
  EXPECT_FALSE(append(1)) << "one block stays unused";
  EXPECT_EQ(sequences_from(start_).size(), 9U);
  ring_->release_before(ring_->head());
  EXPECT_EQ(ring_->used_bytes(), 0U);
  const JournalPosition middle = ring_->head();
  EXPECT_TRUE(append(1));
  EXPECT_TRUE(append(4));
  EXPECT_EQ(sequences_from(middle), (std::vector<std::uint64_t>{10, 11}));
}

TEST_F(JournalTest, GoingRoundManyTimesReadsTheNewestLapOnly) {
  for (int lap = 0; lap < 20; ++lap) {
    const JournalPosition from = ring_->head();
    std::vector<std::uint64_t> expected;
    for (std::uint64_t blocks : {1U, 2U, 3U}) {
      expected.push_back(ring_->head().sequence);
      ASSERT_TRUE(append(blocks));
    }
    EXPECT_EQ(sequences_from(from), expected);
    ring_->release_before(ring_->head());
    EXPECT_EQ(ring_->used_bytes(), 0U);
  }
}

TEST_F(JournalTest, ATornBlockEndsTheChainEvenIfBlocksFollow) {
  for (int i = 0; i < 4; ++i) append(1);  // 4, 5, 6, 7
  flip(6);
  EXPECT_EQ(sequences_from(start_), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(end_.offset_bytes, 6 * kBlock);
  EXPECT_EQ(end_.sequence, 3U);
}

TEST_F(JournalTest, AChainOfAnotherEpochOrAnotherPastIsNotRead) {
  append(1);
  append(1);
  JournalPosition other = start_;
  other.epoch = 8;
  EXPECT_TRUE(sequences_from(other).empty());
  EXPECT_EQ(end_, other);
  other = start_;
  other.previous_hash = 4;
  EXPECT_TRUE(sequences_from(other).empty());
  other = start_;
  other.sequence = 2;
  EXPECT_TRUE(sequences_from(other).empty());
}

TEST_F(JournalTest, AnEmptyOrWildRingReadsAsEmpty) {
  EXPECT_TRUE(sequences_from(start_).empty());
  std::vector<std::byte> noise(geometry_.journal_size_bytes, std::byte{0xff});
  device_.poke(geometry_.journal_offset_bytes, noise);
  EXPECT_TRUE(sequences_from(start_).empty());
}

TEST_F(JournalTest, AReaderMayStopTheWalk) {
  for (int i = 0; i < 3; ++i) append(1);
  int seen = 0;
  const auto end = read_journal(device_, geometry_, start_,
                                [&](const JournalBlock&) -> Result<bool> { return ++seen < 2; });
  ASSERT_TRUE(end);
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(end->sequence, 2U) << "the block that was refused is not part of it";
}

// Unverified, each would have the rest of the ring read because it says so.
TEST_F(JournalTest, HeadersThatClaimTooMuchAreNotBelievedAgainAndAgain) {
  geometry_ = *plan_geometry(512 * kMiB, 4096, 512);
  SimulatedDevice device({.size_bytes = 512 * kMiB});
  const std::uint64_t ring = geometry_.journal_size_bytes;
  const JournalPosition end = {.epoch = 7, .offset_bytes = 0, .sequence = 1, .previous_hash = 3};
  std::vector<std::byte> block(kBlock);
  for (std::uint64_t offset = 0; offset < ring; offset += kBlock) {
    JournalHeader header{.epoch = 7, .sequence = 2, .durable_upto = 1};
    seal_journal_block(block, header, geometry_.uuid);
    const auto claimed = static_cast<std::uint32_t>(ring - offset);
    std::memcpy(block.data() + 4, &claimed, sizeof claimed);
    device.poke(geometry_.journal_offset_bytes + offset, block);
  }
  device.clear_calls();
  EXPECT_EQ(is_chain_damaged(device, geometry_, end), false);
  std::uint64_t read_bytes = 0;
  for (const DeviceCall& call : device.calls()) read_bytes += call.size_bytes;
  EXPECT_LE(read_bytes, 3 * ring);
}

}  // namespace
}  // namespace kvslot::testing
