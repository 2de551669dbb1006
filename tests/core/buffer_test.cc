#include <gtest/gtest.h>
#include <kvslot/buffer.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace kvslot {
namespace {

std::uintptr_t address_of(const Buffer& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.data());
}

TEST(Buffer, DefaultAndMovedFromBuffersAreEmpty) {
  Buffer empty;
  EXPECT_FALSE(empty);
  Buffer first = Buffer::from_heap(100);
  Buffer second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(second);
  EXPECT_TRUE(first.bytes().empty());  // NOLINT(bugprone-use-after-move)
}

TEST(Buffer, HeapMemoryIsAlignedAndWholeBlocks) {
  for (const std::size_t size : {1UL, 4096UL, 4097UL, 10'000'000UL}) {
    const Buffer buffer = Buffer::from_heap(size);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(address_of(buffer) % kBlockSizeBytes, 0U);
    EXPECT_EQ(buffer.capacity() % kBlockSizeBytes, 0U);
    EXPECT_GE(buffer.capacity(), size);
    std::memset(buffer.data(), 1, buffer.capacity());
  }
  EXPECT_FALSE(Buffer::from_heap(0));
}

TEST(Buffer, AssignmentGivesBackWhatWasHeld) {
  BufferPool pool(4 * kMiB);
  Buffer first = pool.take(kMiB);
  Buffer second = pool.take(2 * kMiB);
  first = std::move(second);
  EXPECT_EQ(pool.used_bytes(), 2 * kMiB);
  EXPECT_EQ(first.capacity(), 2 * kMiB);
}

TEST(BufferPool, TakesRoundUpToPowersOfTwoOfBlocks) {
  BufferPool pool(4 * kMiB);
  EXPECT_EQ(pool.take(1).capacity(), 4 * kKiB);
  EXPECT_EQ(pool.take(4096).capacity(), 4 * kKiB);
  EXPECT_EQ(pool.take(4097).capacity(), 8 * kKiB);
  EXPECT_EQ(pool.take(129 * kKiB).capacity(), 256 * kKiB);
  EXPECT_EQ(pool.take(4 * kMiB).capacity(), 4 * kMiB);
  EXPECT_EQ(pool.used_bytes(), 0U);
  EXPECT_EQ(pool.used_bytes_max(), 4 * kMiB);
}

TEST(BufferPool, TakesTheLowestAddressFirst) {
  BufferPool pool(8 * kMiB);
  Buffer first = pool.take(kBlockSizeBytes);
  const std::uintptr_t start = address_of(first);
  EXPECT_EQ(start % (2 * kMiB), 0U) << "huge pages need 2 MiB alignment";
  const Buffer second = pool.take(kBlockSizeBytes);
  const Buffer third = pool.take(kBlockSizeBytes);
  EXPECT_EQ(address_of(second), start + 4 * kKiB);
  EXPECT_EQ(address_of(third), start + 8 * kKiB);
  first = Buffer();
  EXPECT_EQ(address_of(pool.take(kBlockSizeBytes)), start);
}

TEST(BufferPool, IsEmptyRatherThanBlockingWhenUsedUp) {
  BufferPool pool(1);
  EXPECT_EQ(pool.size_bytes(), 4 * kMiB);
  const Buffer all = pool.take(4 * kMiB);
  EXPECT_TRUE(all);
  EXPECT_FALSE(pool.take(1));
  const Buffer from_heap = pool.take_or_heap(5000);
  EXPECT_EQ(from_heap.capacity(), 8 * kKiB);
  EXPECT_EQ(pool.used_bytes(), 4 * kMiB);
}

TEST(BufferPool, SizesNobodyCanServeAreEmpty) {
  BufferPool pool(4 * kMiB);
  EXPECT_FALSE(pool.take(0));
  EXPECT_FALSE(pool.take(4 * kMiB + 1));
  EXPECT_EQ(pool.take_or_heap(5 * kMiB).capacity(), 5 * kMiB);
}

TEST(BufferPool, APoolOfNothingIsAlwaysUsedUp) {
  BufferPool pool(0);
  EXPECT_EQ(pool.size_bytes(), 0U);
  EXPECT_FALSE(pool.take(1));
  EXPECT_TRUE(pool.take_or_heap(1));
}

TEST(BufferPool, PiecesMergeAgainWhateverTheOrderOfReturn) {
  BufferPool pool(8 * kMiB);
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<Buffer> taken;
    while (Buffer buffer = pool.take(1 + random() % (256 * kKiB))) {
      taken.push_back(std::move(buffer));
    }
    std::ranges::shuffle(taken, random);
    taken.clear();
    ASSERT_EQ(pool.used_bytes(), 0U);
    const Buffer first = pool.take(4 * kMiB);
    const Buffer second = pool.take(4 * kMiB);
    ASSERT_TRUE(first && second) << "fragmented after round " << round;
  }
}

TEST(BufferPool, NoTwoBuffersShareABlockUnderConcurrency) {
  BufferPool pool(16 * kMiB);
  const auto work = [&pool](unsigned seed) {
    std::mt19937 random(seed);
    const auto mark = static_cast<int>(seed);
    for (int i = 0; i < 2000; ++i) {
      const Buffer buffer = pool.take(1 + random() % (64 * kKiB));
      if (!buffer) continue;
      std::memset(buffer.data(), mark, buffer.capacity());
      std::this_thread::yield();
      for (const std::size_t at : {std::size_t{0}, buffer.capacity() - 1}) {
        ASSERT_EQ(buffer.data()[at], static_cast<std::byte>(mark));
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.used_bytes(), 0U);
}

}  // namespace
}  // namespace kvslot
