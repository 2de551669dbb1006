// Bytes of files, without a mount: overwriting, holes, truncation, and values larger than memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <vector>

#include "fs/filesystem.h"
#include "tests/fs/filesystem_fixture.h"

namespace kvslot::testing {
namespace {

using FilesystemContentTest = FilesystemTest;

TEST_F(FilesystemContentTest, AShorterOverwriteLeavesNothingOfTheOldValue) {
  put("f", std::string(20, '0'));
  Handle handle = store_.open("f", {.writes = true, .truncates = true});
  EXPECT_EQ(store_.content(handle), "");
  EXPECT_TRUE(store_.write(handle, 0, "BB"));
  EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_EQ(store_.content("f"), "BB");
  store_.reopen();
  EXPECT_EQ(store_.content("f"), "BB");
}

TEST_F(FilesystemContentTest, ATruncationByPathReachesAnOpenWriter) {
  Handle handle = store_.create("f");
  EXPECT_TRUE(store_.write(handle, 0, std::string(9000, 'x')));
  ASSERT_TRUE(store_.truncate(store_.node_of("f"), 100));
  EXPECT_EQ(store_.content(handle), std::string(100, 'x'));
  EXPECT_TRUE(store_.close(std::move(handle)));
  store_.reopen();
  EXPECT_EQ(store_.content("f"), std::string(100, 'x'));
}

TEST_F(FilesystemContentTest, WhatWasCutOffReadsAsZerosWhenTheFileGrowsAgain) {
  const NodeId node = put("f", std::string(300'000, 'x'));
  ASSERT_TRUE(store_.truncate(node, 1000));
  ASSERT_TRUE(store_.truncate(node, 400'000));
  const std::string expected = std::string(1000, 'x') + std::string(399'000, '\0');
  EXPECT_EQ(store_.content("f"), expected);
  store_.reopen();
  EXPECT_EQ(store_.content("f"), expected);
}

TEST_F(FilesystemContentTest, PartOfAStoredWindowCanBeOverwritten) {
  std::string expected(300'000, 'x');
  put("f", expected);
  Handle handle = store_.open("f");
  EXPECT_TRUE(store_.write(handle, 131'000, std::string(200, 'y')));
  expected.replace(131'000, 200, 200, 'y');
  EXPECT_EQ(store_.content(handle), expected);
  EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_EQ(store_.content("f"), expected);
  store_.reopen();
  EXPECT_EQ(store_.content("f"), expected);
}

TEST_F(FilesystemContentTest, HolesReadAsZerosAndTakeNoSpace) {
  const std::uint64_t before = store_.free_blocks();
  Handle handle = store_.create("f");
  EXPECT_TRUE(store_.write(handle, 10 * kMiB, "end"));
  EXPECT_TRUE(store_.close(std::move(handle)));
  store_.reopen();
  Handle reader = store_.open("f", {});
  EXPECT_EQ(*store_.read(reader, 10 * kMiB - 3, 100), std::string("\0\0\0end", 6));
  EXPECT_LT(before - store_.free_blocks(), 16U);
  EXPECT_EQ(*store_.fs().seek(*reader, 0, true), 10 * kMiB);
  EXPECT_EQ(*store_.fs().seek(*reader, 0, false), 0U);
  EXPECT_FALSE(store_.fs().seek(*reader, 10 * kMiB + 3, true));
}

TEST_F(FilesystemContentTest, PunchedAndZeroedRangesReadAsZeros) {
  std::string expected(400'000, 'x');
  const NodeId node = put("f", expected);
  Handle handle = store_.open(node);
  using Allocate = Filesystem::Allocate;
  ASSERT_TRUE(store_.allocate(handle, Allocate::kPunchHole, 1000, 300'000));
  expected.replace(1000, 300'000, 300'000, '\0');
  EXPECT_EQ(store_.content(handle), expected);
  ASSERT_TRUE(store_.allocate(handle, Allocate::kZero, 399'999, 1001));
  expected[399'999] = '\0';
  expected.resize(401'000);
  ASSERT_TRUE(store_.allocate(handle, Allocate::kZeroKeepSize, 400'500, 10'000));
  EXPECT_EQ(store_.content(handle), expected);
  EXPECT_TRUE(store_.close(std::move(handle)));
  store_.reopen();
  EXPECT_EQ(store_.content("f"), expected);
}

TEST_F(FilesystemContentTest, FallocateReservesEachSlotOnce) {
  using Allocate = Filesystem::Allocate;
  const std::uint64_t before = store_.free_blocks();
  Handle handle = store_.create("f");
  const auto taken_by = [&](std::uint64_t size_bytes) {
    EXPECT_TRUE(store_.allocate(handle, Allocate::kReserve, 0, size_bytes));
    return before - store_.free_blocks();
  };
  EXPECT_EQ(taken_by(4096), 1U);
  EXPECT_EQ(taken_by(128 * kKiB), 32U);
  EXPECT_EQ(taken_by(64 * kKiB), 32U);
  EXPECT_TRUE(store_.write(handle, 0, "x"));
  EXPECT_EQ(taken_by(132 * kKiB), 33U);
}

TEST_F(FilesystemContentTest, FallocateReservesTheHolesOfAStoredFile) {
  Handle handle = store_.create("f");
  EXPECT_TRUE(store_.write(handle, 1023 * kKiB, std::string(1024, 'x')));
  EXPECT_TRUE(store_.fsync(handle));
  const std::uint64_t before = store_.free_blocks();
  EXPECT_TRUE(store_.allocate(handle, Filesystem::Allocate::kReserve, 0, 1024 * kKiB));
  const std::uint64_t taken = before - store_.free_blocks();
  EXPECT_GE(taken, 7U * 32U);
  EXPECT_LT(taken, 256U);
}

// With a step for each window of 15 TiB these would take minutes.
TEST_F(FilesystemContentTest, RangesOverAHugeHoleTakeNoTime) {
  using Allocate = Filesystem::Allocate;
  constexpr std::uint64_t kHuge = 15 * kGiB * 1024;
  Handle handle = store_.create("f");
  EXPECT_EQ(errno_of(store_.allocate(handle, Allocate::kReserve, 0, kHuge)), ENOSPC);
  const NodeId node = handle->file->node;
  EXPECT_TRUE(store_.write(handle, kHuge - 3, "end"));
  EXPECT_TRUE(store_.fsync(handle));
  EXPECT_TRUE(store_.allocate(handle, Allocate::kPunchHole, 1, kHuge - 2));
  EXPECT_EQ(*store_.read(handle, kHuge - 3, 3), std::string("\0\0d", 3));
  EXPECT_TRUE(store_.fsync(handle));
  ASSERT_TRUE(store_.truncate(node, 1));
  ASSERT_TRUE(store_.truncate(node, kHuge));
  EXPECT_TRUE(store_.fsync(handle));
  EXPECT_EQ(*store_.read(handle, kHuge - 3, 3), std::string(3, '\0'));
}

// ---- Values larger than memory

TEST_F(FilesystemContentTest, AValueLargerThanMemoryStreamsThrough) {
  LiveStore small(256 * kMiB, 4096, 8 * kMiB);
  Handle handle = small.create("big");
  constexpr std::uint64_t kChunks = 100;
  for (std::uint64_t i = 0; i < kChunks; ++i) {
    ASSERT_TRUE(small.write(handle, i * kMiB, value_of(i, kMiB))) << i;
  }
  for (const std::uint64_t i : {std::uint64_t{0}, std::uint64_t{50}, kChunks - 1}) {
    EXPECT_EQ(*small.read(handle, i * kMiB, kMiB), value_of(i, kMiB)) << i;
  }
  EXPECT_TRUE(small.write(handle, 10 * kMiB + 5, "changed"));  // in a window placed already
  EXPECT_TRUE(small.fsync(handle));
  small.crash();
  Handle reader = small.open("big", {});
  for (std::uint64_t i = 0; i < kChunks; ++i) {
    std::string expected = value_of(i, kMiB);
    if (i == 10) expected.replace(5, 7, "changed");
    EXPECT_EQ(*small.read(reader, i * kMiB, kMiB), expected) << i;
  }
}

TEST_F(FilesystemContentTest, ACommitOfManyWindowsFitsTheJournalOfASmallStore) {
  LiveStore small(64 * kMiB, 4096, 64 * kMiB);
  constexpr std::uint64_t kChunks = 45;
  Handle handle = small.create("big");
  small.device().hold(OperationKind::kWrite);
  for (std::uint64_t i = 0; i < kChunks; ++i) {
    ASSERT_TRUE(small.write(handle, i * kMiB, value_of(i, kMiB))) << i;
  }
  auto synced = small.begin_fsync(handle);
  small.device().release();
  EXPECT_EQ(errno_of(synced.get()), 0);
  small.crash();
  Handle reader = small.open("big", {});
  for (std::uint64_t i = 0; i < kChunks; ++i) {
    EXPECT_EQ(*small.read(reader, i * kMiB, kMiB), value_of(i, kMiB)) << i;
  }
}

TEST_F(FilesystemContentTest, OverwritingPartsOfALargeFileTakesBoundedMemory) {
  constexpr std::uint64_t kStaging = 8 * kMiB;
  constexpr std::uint64_t kWindow = 128 * kKiB;
  constexpr std::uint64_t kWindows = 400;
  LiveStore small(256 * kMiB, 4096, kStaging);
  Handle handle = small.create("f");
  for (std::uint64_t i = 0; i < kWindows; ++i) {
    ASSERT_TRUE(small.write(handle, i * kWindow, value_of(i, kWindow)));
  }
  ASSERT_TRUE(small.fsync(handle));
  std::uint64_t buffered_max = 0;
  for (std::uint64_t i = 0; i < kWindows; ++i) {
    ASSERT_TRUE(small.write(handle, i * kWindow + 70'000, "changed"));
    MutexLock lock(handle->file->mutex);
    buffered_max = std::max(buffered_max, handle->file->content.buffered_bytes());
  }
  EXPECT_LE(buffered_max, kStaging);
  ASSERT_TRUE(small.fsync(handle));
  small.crash();
  Handle reader = small.open("f", {});
  for (std::uint64_t i = 0; i < kWindows; ++i) {
    std::string expected = value_of(i, kWindow);
    expected.replace(70'000, 7, "changed");
    EXPECT_EQ(*small.read(reader, i * kWindow, kWindow), expected) << i;
  }
}

TEST_F(FilesystemContentTest, WhatWasPlacedAndAbandonedGivesItsSpaceBack) {
  LiveStore small(256 * kMiB, 4096, 8 * kMiB);
  const std::uint64_t before = small.free_blocks();
  Handle handle = small.create("big");
  for (std::uint64_t i = 0; i < 60; ++i) {
    ASSERT_TRUE(small.write(handle, i * kMiB, value_of(i, kMiB)));
  }
  EXPECT_TRUE(small.unlink("big"));
  const NodeId node = handle->file->node;
  EXPECT_TRUE(small.close(std::move(handle)));
  small.fs().forget(node, 1);
  EXPECT_TRUE(small.sync());
  EXPECT_EQ(small.free_blocks(), before);
}

}  // namespace
}  // namespace kvslot::testing
