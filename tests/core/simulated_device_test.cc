// The tests' own device is tested too: what it promises is what crash tests rest on.
#include "tests/support/simulated_device.h"

#include <gtest/gtest.h>
#include <kvslot/buffer.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

namespace kvslot::testing {
namespace {

constexpr std::size_t kSectorSizeBytes = 512;
constexpr std::size_t kSectorsPerBlock = kBlockSizeBytes / kSectorSizeBytes;

// Verbs for whole blocks filled with one value.
class SimulatedDeviceTest : public ::testing::Test {
 protected:
  static int transfer(SimulatedDevice& device, IoOp op, std::uint64_t block, const Buffer& memory) {
    const iovec segment{memory.data(), kBlockSizeBytes};
    IoRequest request{
        .op = op, .offset_bytes = block * kBlockSizeBytes, .segments = {&segment, 1}, .error = -1};
    device.run({&request, 1});
    return request.error;
  }
  static int write(SimulatedDevice& device, std::uint64_t block, int value) {
    const Buffer memory = Buffer::from_heap(kBlockSizeBytes);
    std::memset(memory.data(), value, kBlockSizeBytes);
    return transfer(device, IoOp::kWrite, block, memory);
  }
  // The value that fills the block; -1 if it is not one value, -2 if the read fails.
  static int read(SimulatedDevice& device, std::uint64_t block) {
    const Buffer memory = Buffer::from_heap(kBlockSizeBytes);
    if (transfer(device, IoOp::kRead, block, memory) != 0) return -2;
    const std::byte first = memory.data()[0];
    const auto is_first = [first](std::byte b) { return b == first; };
    return std::ranges::all_of(memory.bytes(), is_first) ? static_cast<int>(first) : -1;
  }
  // Writes several blocks in one batch; returns their errors.
  static std::vector<int> write_batch(SimulatedDevice& device, std::uint64_t first,
                                      std::size_t count, int value) {
    const Buffer memory = Buffer::from_heap(kBlockSizeBytes);
    std::memset(memory.data(), value, kBlockSizeBytes);
    const iovec segment{memory.data(), kBlockSizeBytes};
    std::vector<IoRequest> requests;
    for (std::size_t i = 0; i < count; ++i) {
      requests.push_back({.op = IoOp::kWrite,
                          .offset_bytes = (first + i) * kBlockSizeBytes,
                          .segments = {&segment, 1}});
    }
    device.run(requests);
    std::vector<int> errors;
    for (const IoRequest& request : requests) errors.push_back(request.error);
    return errors;
  }
  static std::vector<std::byte> sectors(const SimulatedDevice& device, std::uint64_t block) {
    std::vector<std::byte> firsts;
    for (std::size_t i = 0; i < kSectorsPerBlock; ++i) {
      std::array<std::byte, kSectorSizeBytes> sector{};
      device.peek(block * kBlockSizeBytes + i * kSectorSizeBytes, sector);
      EXPECT_EQ(std::set<std::byte>(sector.begin(), sector.end()).size(), 1U) << "torn sector";
      firsts.push_back(sector[0]);
    }
    return firsts;
  }

  SimulatedDevice device_;
};

TEST_F(SimulatedDeviceTest, ReadsWhatWasWrittenAndZerosElsewhere) {
  EXPECT_EQ(write(device_, 3, 7), 0);
  EXPECT_EQ(read(device_, 3), 7);
  EXPECT_EQ(read(device_, 4), 0);
}

TEST_F(SimulatedDeviceTest, HoldsDevicesLargerThanMemory) {
  SimulatedDevice large({.size_bytes = 8ULL << 40});
  const std::uint64_t last = (8ULL << 40) / kBlockSizeBytes - 1;
  EXPECT_EQ(write(large, last, 9), 0);
  EXPECT_EQ(read(large, last), 9);
  EXPECT_EQ(write(large, last + 1, 9), EIO);
  EXPECT_EQ(large.info().size_bytes, 8ULL << 40);
}

TEST_F(SimulatedDeviceTest, DiscardedBlocksReadZeros) {
  write(device_, 1, 5);
  write(device_, 2, 6);
  device_.discard(kBlockSizeBytes, kBlockSizeBytes);
  EXPECT_EQ(read(device_, 1), 0);
  EXPECT_EQ(read(device_, 2), 6);
}

// ---- Crashes ----

TEST_F(SimulatedDeviceTest, PowerLossKeepsWhatWasFlushed) {
  write(device_, 1, 1);
  ASSERT_TRUE(device_.flush());
  write(device_, 1, 2);
  write(device_, 2, 2);
  for (const CrashMode mode :
       {CrashMode::kNone, CrashMode::kAll, CrashMode::kRandom, CrashMode::kPrefix}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const auto survivor = device_.survivor(seed, mode);
      for (const std::byte sector : sectors(*survivor, 1)) EXPECT_NE(sector, std::byte{0});
    }
  }
  EXPECT_EQ(read(*device_.survivor(1, CrashMode::kNone), 1), 1);
  EXPECT_EQ(read(*device_.survivor(1, CrashMode::kNone), 2), 0);
  EXPECT_EQ(read(*device_.survivor(1, CrashMode::kAll), 1), 2);
  EXPECT_EQ(read(*device_.survivor(1, CrashMode::kAll), 2), 2);
}

TEST_F(SimulatedDeviceTest, RandomPowerLossFindsEveryCombinationAndTearsSectors) {
  write(device_, 1, 1);
  write(device_, 2, 2);
  std::set<std::pair<int, int>> found;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto survivor = device_.survivor(seed, CrashMode::kRandom);
    found.emplace(read(*survivor, 1), read(*survivor, 2));
    sectors(*survivor, 1);
  }
  for (const int first : {0, 1, -1}) {
    for (const int second : {0, 2, -1}) EXPECT_TRUE(found.contains({first, second}));
  }
}

TEST_F(SimulatedDeviceTest, PrefixPowerLossNeverKeepsALaterWriteWithoutAnEarlierOne) {
  for (std::uint64_t block = 0; block < 8; ++block) write(device_, block, 1);
  std::set<std::size_t> lengths;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto survivor = device_.survivor(seed, CrashMode::kPrefix);
    std::size_t whole = 0;
    while (whole < 8 && read(*survivor, whole) == 1) ++whole;
    for (std::uint64_t block = whole + 1; block < 8; ++block) EXPECT_EQ(read(*survivor, block), 0);
    lengths.insert(whole);
  }
  EXPECT_EQ(lengths.size(), 9U);
}

TEST_F(SimulatedDeviceTest, ASeedReproducesASurvivor) {
  for (std::uint64_t block = 0; block < 16; ++block) write(device_, block, 1);
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const auto first = device_.survivor(seed, CrashMode::kRandom);
    const auto second = device_.survivor(seed, CrashMode::kRandom);
    for (std::uint64_t block = 0; block < 16; ++block) {
      EXPECT_EQ(sectors(*first, block), sectors(*second, block));
    }
  }
}

TEST_F(SimulatedDeviceTest, ADiscardMayBeUndoneByPowerLoss) {
  write(device_, 1, 1);
  ASSERT_TRUE(device_.flush());
  device_.discard(kBlockSizeBytes, kBlockSizeBytes);
  EXPECT_EQ(read(*device_.survivor(1, CrashMode::kNone), 1), 1);
  EXPECT_EQ(read(*device_.survivor(1, CrashMode::kAll), 1), 0);
}

TEST_F(SimulatedDeviceTest, VanishesAfterTheOperationAskedFor) {
  device_.crash_after_operations(2, ENXIO);
  EXPECT_EQ(write_batch(device_, 0, 4, 1), (std::vector<int>{0, 0, ENXIO, ENXIO}));
  EXPECT_TRUE(device_.is_crashed());
  const Result<void> flushed = device_.flush();
  ASSERT_FALSE(flushed);
  EXPECT_EQ(flushed.error().os_errno, ENXIO);
  EXPECT_EQ(read(device_, 0), -2);
  EXPECT_EQ(device_.operation_count(), 2U);
}

TEST_F(SimulatedDeviceTest, WritesUnderWayWhenItVanishedMaySurvive) {
  device_.crash_after_operations(1);
  write_batch(device_, 0, 3, 1);
  write(device_, 5, 1);  // began on a device already gone: cannot survive
  const auto survivor = device_.survivor(1, CrashMode::kAll);
  EXPECT_EQ(read(*survivor, 0), 1);
  EXPECT_EQ(read(*survivor, 2), 1);
  EXPECT_EQ(read(*survivor, 5), 0);
  EXPECT_EQ(read(*device_.survivor(1, CrashMode::kNone), 0), 0);
}

TEST_F(SimulatedDeviceTest, AKilledProcessLosesNothingThatCompleted) {
  write(device_, 1, 1);
  ASSERT_TRUE(device_.flush());
  write(device_, 2, 2);
  device_.crash_after_operations(0);
  write(device_, 3, 3);
  const auto next = device_.process_crash();
  EXPECT_EQ(read(*next, 1), 1);
  EXPECT_EQ(read(*next, 2), 2);
  EXPECT_EQ(read(*next, 3), 0);
  EXPECT_EQ(read(*next->survivor(1, CrashMode::kNone), 2), 0) << "nobody flushed it";
  ASSERT_TRUE(next->flush());
  EXPECT_EQ(read(*next->survivor(1, CrashMode::kNone), 2), 2);
}

TEST_F(SimulatedDeviceTest, AFlushCoversOnlyWhatCompletedBeforeItBegan) {
  write(device_, 1, 1);
  device_.hold(OperationKind::kFlush);
  std::thread flusher([this] { EXPECT_TRUE(device_.flush()); });
  device_.wait_until_held(1);
  write(device_, 2, 2);
  device_.release();
  flusher.join();
  const auto survivor = device_.survivor(1, CrashMode::kNone);
  EXPECT_EQ(read(*survivor, 1), 1);
  EXPECT_EQ(read(*survivor, 2), 0);
}

// ---- Faults ----

TEST_F(SimulatedDeviceTest, FailsTheOperationsAskedFor) {
  device_.add_fault({.kind = OperationKind::kWrite, .skip = 1, .times = 2, .error = EROFS});
  EXPECT_EQ(write_batch(device_, 0, 5, 1), (std::vector<int>{0, EROFS, EROFS, 0, 0}));
  EXPECT_EQ(read(device_, 0), 1);
  EXPECT_EQ(read(device_, 1), 0);
  device_.add_fault({.kind = OperationKind::kRead});
  EXPECT_EQ(read(device_, 0), -2);
  device_.clear_faults();
  EXPECT_EQ(read(device_, 0), 1);
}

TEST_F(SimulatedDeviceTest, FailsOnlyTheRangeAskedFor) {
  device_.add_fault({.offset_bytes = 8 * kKiB, .size_bytes = kBlockSizeBytes});
  EXPECT_EQ(write_batch(device_, 0, 4, 1), (std::vector<int>{0, 0, EIO, 0}));
}

TEST_F(SimulatedDeviceTest, AFailedFlushLeavesItsWritesInDoubtForGood) {
  for (std::uint64_t block = 0; block < 64; ++block) write(device_, block, 1);
  device_.add_fault({.kind = OperationKind::kFlush, .times = 1});
  EXPECT_FALSE(device_.flush());
  EXPECT_TRUE(device_.flush());
  const auto survivor = device_.survivor(1, CrashMode::kAll);
  std::set<int> found;
  for (std::uint64_t block = 0; block < 64; ++block) {
    EXPECT_EQ(read(device_, block), 1);
    found.insert(read(*survivor, block));
  }
  EXPECT_EQ(found, (std::set<int>{0, 1}));
}

TEST_F(SimulatedDeviceTest, BitsRotOnTheMediumOrOnlyOnTheWay) {
  write(device_, 1, 1);
  device_.add_fault({.kind = OperationKind::kRead, .times = 1, .error = 0, .flips_bit = true});
  EXPECT_EQ(read(device_, 1), -1);
  EXPECT_EQ(read(device_, 1), 1);
  device_.flip_bit(kBlockSizeBytes + 100, 3);
  EXPECT_EQ(read(device_, 1), -1);
  ASSERT_TRUE(device_.flush());
  EXPECT_EQ(read(*device_.survivor(1, CrashMode::kNone), 1), -1);
  device_.flip_bit(kBlockSizeBytes + 100, 3);
  EXPECT_EQ(read(device_, 1), 1);
}

TEST_F(SimulatedDeviceTest, AThinDeviceRefusesFreshBlocksWhenItsBudgetIsUsedUp) {
  device_.set_thin_budget(8 * kKiB);
  EXPECT_EQ(write_batch(device_, 0, 3, 1), (std::vector<int>{0, 0, ENOSPC}));
  EXPECT_EQ(write(device_, 1, 2), 0) << "a block that has its space can be written again";
  device_.discard(0, kBlockSizeBytes);
  EXPECT_EQ(write(device_, 9, 1), 0);
  EXPECT_EQ(write(device_, 0, 1), ENOSPC);
  device_.set_thin_budget(std::nullopt);
  EXPECT_EQ(write(device_, 0, 1), 0);
}

// ---- Holding operations, counting ----

TEST_F(SimulatedDeviceTest, HoldsOnlyTheKindAskedForUntilReleased) {
  device_.hold(OperationKind::kWrite);
  std::thread writer([this] { write_batch(device_, 0, 5, 1); });
  device_.wait_until_held(1);
  EXPECT_EQ(read(device_, 0), 0);
  EXPECT_EQ(device_.counters().queue_depth, 5U);
  device_.release();
  writer.join();
  EXPECT_EQ(read(device_, 0), 1);
  EXPECT_EQ(device_.counters().queue_depth, 0U);
}

TEST_F(SimulatedDeviceTest, LetsHeldCallsPassOneByOne) {
  device_.hold(OperationKind::kWrite);
  std::vector<std::thread> writers;
  for (std::uint64_t block = 0; block < 3; ++block) {
    writers.emplace_back([this, block] { write(device_, block, 1); });
  }
  device_.wait_until_held(3);
  device_.let_pass(1);
  while (device_.unflushed_write_count() == 0) std::this_thread::yield();
  EXPECT_EQ(device_.held_count(), 2U);
  EXPECT_EQ(device_.unflushed_write_count(), 1U);
  device_.release();
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(device_.unflushed_write_count(), 3U);
}

TEST_F(SimulatedDeviceTest, ListsItsCalls) {
  write_batch(device_, 0, 10, 1);
  read(device_, 0);
  ASSERT_TRUE(device_.flush());
  const std::vector<DeviceCall> calls = device_.calls();
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[0].writes, 10U);
  EXPECT_EQ(calls[0].size_bytes, 10U * kBlockSizeBytes);
  EXPECT_EQ(calls[1].reads, 1U);
  EXPECT_EQ(calls[2].kind, DeviceCall::Kind::kFlush);
  EXPECT_EQ(device_.counters().queue_depth_max, 10U);
  EXPECT_EQ(device_.counters().batches, 2U);
  device_.clear_calls();
  EXPECT_TRUE(device_.calls().empty());
}

TEST_F(SimulatedDeviceTest, ThreadsMayUseItAtTheSameTime) {
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([this, thread] {
      for (int i = 1; i <= 100; ++i) {
        EXPECT_EQ(write(device_, thread, i), 0);
        EXPECT_EQ(read(device_, thread), i);
        if (i % 10 == 0) {
          EXPECT_TRUE(device_.flush());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device_.counters().writes, 400U);
}

TEST_F(SimulatedDeviceTest, ShufflesBatchesByItsSeed) {
  std::set<std::vector<int>> outcomes;
  for (const std::uint64_t seed : {1U, 1U, 2U, 3U}) {
    SimulatedDevice device({.seed = seed, .shuffles_batches = true});
    device.crash_after_operations(4);
    outcomes.insert(write_batch(device, 0, 8, 1));
  }
  EXPECT_EQ(outcomes.size(), 3U);
}

}  // namespace
}  // namespace kvslot::testing
