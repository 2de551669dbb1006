// Reading: wrong bytes are never returned, transient faults do no harm, holes read as zeros.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/engine.h"

namespace kvslot::testing {
namespace {

using ::testing::SizeIs;

class ContentsTest : public ::testing::Test {
 protected:
  Volume& volume() { return harness_.volume(); }
  SimulatedDevice& device() { return harness_.device(); }
  NodeId node(std::string_view key) { return volume().find(key)->node; }
  std::string read(NodeId node, std::uint64_t offset, std::size_t size) {
    const auto view = volume().read(node, offset, size);
    return view ? text_of(*view) : std::string("<") + view.error().step + ">";
  }
  // Commits windows of one file: (window, bytes); empty bytes make a hole.
  void write_windows(NodeId file, std::uint64_t size_bytes,
                     const std::vector<std::pair<std::uint32_t, std::string>>& windows) {
    ContentChange change;
    change.node = file;
    change.size_bytes = size_bytes;
    for (const auto& [window, bytes] : windows) {
      change.writes.push_back({window, static_cast<std::uint32_t>(bytes.size()),
                               Buffer::from_heap(std::max<std::size_t>(bytes.size(), 1))});
      std::memcpy(change.writes.back().data.data(), bytes.data(), bytes.size());
    }
    volume().commit({&change, 1});
    EXPECT_TRUE(change.result) << change.result.error().step;
  }
  std::uint64_t offset_on_device(std::string_view key) {
    const auto record = volume().inspector().node(node(key));
    return std::uint64_t{record->extents.front().device_block} * kBlockSizeBytes;
  }

  StoreHarness harness_;
  const std::uint32_t window_ = kExtentSizeBytesMax;
};

TEST_F(ContentsTest, AFlippedBitIsAnErrorAndACounterAndNeverBytes) {
  ASSERT_TRUE(put_key(volume(), "bad", value_of(1, 5000)));
  ASSERT_TRUE(put_key(volume(), "good", value_of(2, 5000)));
  device().flip_bit(offset_on_device("bad") + 4999, 7);
  const auto value = read_key(volume(), "bad");
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().code, Errc::kCorrupt);
  EXPECT_EQ(to_errno(value.error()), EIO);
  EXPECT_EQ(harness_.stat("checksum_failures"), 1U);
  ASSERT_THAT(volume().inspector().faults(), SizeIs(1));
  EXPECT_EQ(volume().inspector().faults()[0].key, "bad");
  EXPECT_EQ(volume().inspector().faults()[0].operation, "read");
  EXPECT_EQ(read_key(volume(), "good"), value_of(2, 5000));
  EXPECT_FALSE(volume().is_read_only());
}

TEST_F(ContentsTest, ABadReadThatDoesNotRepeatGivesTheValue) {
  ASSERT_TRUE(put_key(volume(), "key", value_of(1, 300'000)));
  device().add_fault({.kind = OperationKind::kRead, .times = 1, .error = 0, .flips_bit = true});
  EXPECT_EQ(read_key(volume(), "key"), value_of(1, 300'000));
  EXPECT_EQ(harness_.stat("rereads"), 1U);
  EXPECT_EQ(harness_.stat("checksum_failures"), 0U);
  device().clear_faults();
  device().add_fault({.kind = OperationKind::kRead, .times = 1});
  EXPECT_EQ(read_key(volume(), "key"), value_of(1, 300'000));
}

TEST_F(ContentsTest, ADeviceThatFailsEveryReadIsAnErrorForThatKeyAlone) {
  ASSERT_TRUE(put_key(volume(), "bad", value_of(1, 5000)));
  ASSERT_TRUE(put_key(volume(), "good", value_of(2, 5000)));
  device().add_fault({.kind = OperationKind::kRead,
                      .offset_bytes = offset_on_device("bad"),
                      .size_bytes = kBlockSizeBytes});
  const std::vector<std::string_view> keys{"bad", "good"};
  const auto values = harness_.store().get_many(keys);
  EXPECT_EQ(values[0].error().code, Errc::kIo);
  EXPECT_EQ(values[1], value_of(2, 5000));
}

// Memory of the pool may hold what the same value gave before; that it matches says nothing of the
// device.
TEST_F(ContentsTest, AReadThatFailsIsAnErrorAlsoWhereItsMemoryHoldsTheValue) {
  const std::shared_ptr<SimulatedDevice> device = make_device(16 * kMiB);
  const auto opened = Volume::open(std::make_unique<BorrowedDevice>(device),
                                   {.staging_size_bytes = 4 * kMiB, .seed = 1});
  ASSERT_TRUE(opened);
  Volume& with_pool = **opened;
  ASSERT_TRUE(put_key(with_pool, "a", value_of(1, 5000)));
  ASSERT_EQ(read_key(with_pool, "a"), value_of(1, 5000));
  device->add_fault({.kind = OperationKind::kRead});
  const auto value = read_key(with_pool, "a");
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().code, Errc::kIo);
}

TEST_F(ContentsTest, AnyRangeOfALargeValueReadsExactly) {
  const std::string value = value_of(3, 1'000'003);
  ASSERT_TRUE(put_key(volume(), "key", value));
  const NodeId file = node("key");
  for (const std::uint64_t offset :
       {0U, 1U, 4095U, 4096U, 131'071U, 131'072U, 500'000U, 1'000'002U})
    for (const std::size_t size : {1U, 511U, 4096U, 131'073U, 2'000'000U})
      EXPECT_TRUE(read(file, offset, size) == value.substr(offset, size)) << offset << " " << size;
  EXPECT_EQ(read(file, 1'000'003, 10), "");
  EXPECT_EQ(read(file, UINT64_MAX / 2, 10), "");
}

TEST_F(ContentsTest, WindowsNotWrittenAreHolesThatReadAsZeros) {
  const auto file = volume().create(NodeId::kRoot, "sparse", NodeKind::kFile, {});
  ASSERT_TRUE(file);
  write_windows(file->node, 10 * window_ + 5, {{2, std::string(window_, 'c')}});
  std::string expected(10 * window_ + 5, '\0');
  expected.replace(2 * window_, window_, std::string(window_, 'c'));
  for (const bool restarted : {false, true}) {
    if (restarted) harness_.reopen();
    const NodeId now = node("sparse");
    EXPECT_TRUE(read(now, 0, SIZE_MAX) == expected);
    EXPECT_EQ(volume().seek(now, 0, true), 2 * window_);
    EXPECT_EQ(volume().seek(now, 0, false), 0U);
    EXPECT_EQ(volume().seek(now, 2 * window_ + 7, true), 2 * window_ + 7);
    EXPECT_EQ(volume().seek(now, 2 * window_ + 7, false), 3 * window_);
    EXPECT_EQ(to_errno(volume().seek(now, 4 * window_, true).error()), ENXIO);
    EXPECT_EQ(to_errno(volume().seek(now, 11 * window_, false).error()), ENXIO);
    EXPECT_EQ(volume().stat(now)->allocated_bytes, window_);
  }
}

TEST_F(ContentsTest, ReplacingOneWindowLeavesTheOthersAndFreesItsSlots) {
  const std::string value = value_of(4, 3 * window_);
  ASSERT_TRUE(put_key(volume(), "key", value));
  ASSERT_TRUE(volume().flush());
  const std::uint64_t live = harness_.stat("slots_live");
  write_windows(node("key"), 3 * window_, {{1, std::string(window_, 'n')}});
  std::string expected = value;
  expected.replace(window_, window_, std::string(window_, 'n'));
  ASSERT_TRUE(volume().flush());
  EXPECT_EQ(harness_.stat("slots_live"), live);
  EXPECT_EQ(harness_.stat("slots_doomed"), 0U);
  harness_.crash();
  EXPECT_TRUE(read_key(volume(), "key") == expected);
}

TEST_F(ContentsTest, ASmallerSizeDropsWindowsAndAHoleFreesThem) {
  const std::string value = value_of(5, 4 * window_);
  ASSERT_TRUE(put_key(volume(), "key", value));
  write_windows(node("key"), window_ + 10, {{1, value.substr(window_, 10)}});
  EXPECT_TRUE(read_key(volume(), "key") == value.substr(0, window_ + 10));
  write_windows(node("key"), window_ + 10, {{0, ""}});
  const std::string expected = std::string(window_, '\0') + value.substr(window_, 10);
  ASSERT_TRUE(volume().flush());
  EXPECT_EQ(harness_.stat("slots_live"), 1U);
  harness_.crash();
  EXPECT_TRUE(read_key(volume(), "key") == expected);
  expect_slots_accounted(volume());
}

TEST_F(ContentsTest, SlotsAreNotUsedAgainWhileAReaderIsOnThem) {
  ASSERT_TRUE(put_key(volume(), "key", value_of(6, 8000)));
  ASSERT_TRUE(volume().flush());
  const NodeId file = node("key");
  device().hold(OperationKind::kRead);
  std::string seen;
  std::thread reader([&] { seen = read(file, 0, 8000); });
  device().wait_until_held(1);
  ASSERT_TRUE(put_key(volume(), "key", "new"));
  ASSERT_TRUE(volume().flush());
  EXPECT_EQ(harness_.stat("slots_doomed"), 2U);
  device().release();
  reader.join();
  EXPECT_EQ(seen, value_of(6, 8000));
  EXPECT_EQ(harness_.stat("slots_doomed"), 0U);
}

}  // namespace
}  // namespace kvslot::testing
