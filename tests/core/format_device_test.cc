// Formatting: what it refuses, what it writes, and what it says about a store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/admin.h>
#include <kvslot/volume.h>

#include <string>
#include <vector>

#include "tests/support/engine.h"

namespace kvslot::testing {
namespace {

using ::testing::HasSubstr;

class FormatTest : public ::testing::Test {
 protected:
  void plant(std::uint64_t offset, std::string_view bytes) {
    device_.poke(offset, bytes_of(bytes));
  }
  // The step of the refusal; empty when it was formatted.
  std::string format(const FormatOptions& options = {}) {
    const auto formatted = format_device(device_, options);
    return formatted ? std::string() : formatted.error().step;
  }
  std::vector<std::byte> bytes() {
    std::vector<std::byte> all(device_.info().size_bytes);
    device_.peek(0, all);
    return all;
  }

  SimulatedDevice device_{{.size_bytes = 16 * kMiB}};
};

TEST_F(FormatTest, RefusesWhatSomebodyMightMissAndChangesNothing) {
  const std::vector<std::pair<std::uint64_t, std::string>> signatures{
      {1080, "\x53\xef"},  {0, "XFSB"},       {65600, "_BHRfS_M"}, {3, "NTFS    "},
      {0, "LUKS\xba\xbe"}, {510, "\x55\xaa"}, {512, "EFI PART"},   {4086, "SWAPSPACE2"},
      {536, "LVM2 001"},   {0, "KVSLOTSB"},   {700'000, "x"},      {16 * kMiB - 1, "x"},
      {15 * kMiB, "x"}};
  for (const auto& [offset, signature] : signatures) {
    plant(offset, signature);
    const auto before = bytes();
    EXPECT_NE(format(), "") << signature;
    EXPECT_EQ(format_device(device_, {}).error().code, Errc::kExists) << signature;
    EXPECT_TRUE(bytes() == before);
    plant(offset, std::string(signature.size(), '\0'));
  }
  EXPECT_EQ(format(), "");
}

TEST_F(FormatTest, ForceOverwritesAndAStoreIsRefusedWithoutIt) {
  EXPECT_EQ(format(), "");
  EXPECT_THAT(format(), HasSubstr("kvslot store"));
  EXPECT_EQ(format({.label = {}, .force = true}), "");
}

TEST_F(FormatTest, TheRootDirectoryIsWhoseTheStoreIs) {
  EXPECT_EQ(format({.label = {}, .root_uid = 1000, .root_gid = 100}), "");
  const auto volume = Volume::open(device_.process_crash(), {});
  ASSERT_TRUE(volume);
  const auto root = (*volume)->stat(NodeId::kRoot);
  ASSERT_TRUE(root);
  EXPECT_EQ(root->attributes.uid, 1000U);
  EXPECT_EQ(root->attributes.gid, 100U);
}

TEST_F(FormatTest, BytesInTheMiddleAreNobodysBusiness) {
  plant(8 * kMiB, "old data");
  EXPECT_EQ(format(), "");
}

TEST_F(FormatTest, OptionsOutOfRangeAreRefused) {
  EXPECT_EQ(format_device(device_, {.slot_size_bytes = 5000, .label = {}}).error().code,
            Errc::kInvalid);
  EXPECT_EQ(format_device(device_, {.slot_size_bytes = 8 << 20, .label = {}}).error().code,
            Errc::kInvalid);
  EXPECT_EQ(format_device(device_, {.label = std::string(64, 'l')}).error().code, Errc::kTooLarge);
  SimulatedDevice small({.size_bytes = 16 * kMiB - 4096});
  EXPECT_EQ(format_device(small, {}).error().code, Errc::kInvalid);
}

TEST_F(FormatTest, InfoTellsWhatWasChosen) {
  ASSERT_EQ(format({.slot_size_bytes = 65536, .label = "a label", .seed = 5}), "");
  const auto info = read_store_info(device_);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->geometry.label, "a label");
  EXPECT_EQ(info->geometry.slot_size_bytes, 65536U);
  EXPECT_EQ(info->geometry.size_bytes, 16 * kMiB);
  EXPECT_TRUE(info->closed);
  EXPECT_EQ(info->key_count, 0U);
  EXPECT_EQ(to_string(info->geometry.uuid).size(), 36U);
}

TEST_F(FormatTest, AStoreIsDurableOnceFormatReturns) {
  ASSERT_EQ(format(), "");
  EXPECT_TRUE(Volume::open(device_.survivor(1, CrashMode::kNone), {}));
}

TEST_F(FormatTest, ACrashDuringFormatLeavesAStoreOrNone) {
  for (std::uint64_t step = 0; step < 8; ++step) {
    SimulatedDevice device({.size_bytes = 16 * kMiB});
    device.crash_after_operations(step);
    const bool formatted = format_device(device, {}).has_value();
    const auto opened = Volume::open(device.survivor(step, CrashMode::kRandom), {});
    EXPECT_TRUE(opened || !formatted);
  }
}

TEST_F(FormatTest, AReformattedDeviceKnowsNothingOfItsFormerKeys) {
  auto device = std::make_shared<SimulatedDevice>(SimulatedDeviceOptions{.size_bytes = 16 * kMiB});
  ASSERT_TRUE(format_device(*device, {.label = {}, .seed = 1}));
  {
    auto volume = Volume::open(std::make_unique<BorrowedDevice>(device), {.seed = 1});
    ASSERT_TRUE(volume);
    ASSERT_TRUE(put_key(**volume, "old", "value"));
    ASSERT_TRUE((*volume)->flush());
  }
  ASSERT_TRUE(format_device(*device, {.label = {}, .force = true, .seed = 2}));
  auto volume = Volume::open(std::make_unique<BorrowedDevice>(device), {.seed = 2});
  ASSERT_TRUE(volume);
  EXPECT_EQ((*volume)->find("old").error().code, Errc::kNotFound);
}

TEST_F(FormatTest, WhatIsNoStoreIsRefusedWithAReason) {
  const auto opened = Volume::open(device_.survivor(1, CrashMode::kNone), {});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Errc::kCorrupt);
  EXPECT_THAT(opened.error().step, HasSubstr("signature"));
}

}  // namespace
}  // namespace kvslot::testing
