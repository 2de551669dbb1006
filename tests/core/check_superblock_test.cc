// The check of the superblock's copies, and of devices that hold no store or a part of one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/check_report.h"
#include "tests/support/planted_store.h"

namespace kvslot {
namespace {

using ::testing::AllOf;
using testing::check;
using ::testing::Contains;
using testing::errors_of;
using testing::expect_error;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kDeviceBytes;
using testing::SimulatedDevice;
using testing::text_of;
using Planted = testing::PlantedStore;

TEST(CheckSuperblock, AnEmptyStoreIsCleanAndNotWrittenTo) {
  SimulatedDevice device({.size_bytes = kDeviceBytes});
  ASSERT_TRUE(format_device(device, {}).has_value());
  const std::uint64_t writes = device.counters().writes;
  const CheckReport report = check(device);
  EXPECT_THAT(report.findings, IsEmpty()) << text_of(report);
  EXPECT_EQ(device.counters().writes, writes);
}

TEST(CheckSuperblock, ADamagedCopyOfTheSuperblockIsFoundAndAnotherStandsIn) {
  for (std::size_t copy = 0; copy < kSuperblockCopies; ++copy) {
    Planted store;
    store.write();
    store.device.flip_bit(superblock_offsets(kDeviceBytes)[copy] + 100, 3);
    expect_error(store.device, "is damaged");
    EXPECT_EQ(check(store.device).findings[0].remedy, Remedy::kRepair);
  }
}

TEST(CheckSuperblock, NoGoodCopyOfTheSuperblockIsDamage) {
  Planted store;
  store.write();
  for (const std::uint64_t offset : superblock_offsets(kDeviceBytes))
    store.device.flip_bit(offset + 100, 3);
  EXPECT_THAT(errors_of(check(store.device)), Contains(HasSubstr("no copy of the superblock")));
}

TEST(CheckSuperblock, AStaleCopyIsARemarkADisagreeingOrForeignOneAnError) {
  const auto finding_of = [](const std::function<void(Superblock&)>& change) {
    Planted store;
    store.write();
    Superblock changed = store.superblock;
    change(changed);
    store.device.poke(superblock_offsets(kDeviceBytes)[3], encode_superblock(changed));
    const CheckReport report = check(store.device);
    EXPECT_EQ(report.findings.size(), 1);
    if (report.findings.empty()) return std::string();
    EXPECT_EQ(report.damaged, report.findings[0].remedy == Remedy::kRepair);
    return (report.damaged ? "error: " : "remark: ") + report.findings[0].what;
  };
  EXPECT_THAT(finding_of([](Superblock& s) { s.sequence = 4; }),
              HasSubstr("remark: 1 of the superblock's copies are older"));
  EXPECT_THAT(finding_of([](Superblock& s) { s.clean = !s.clean; }),
              AllOf(HasSubstr("error"), HasSubstr("disagrees")));
  EXPECT_THAT(finding_of([](Superblock& s) { s.geometry.uuid[0] ^= 1; }),
              AllOf(HasSubstr("error"), HasSubstr("another store")));
}

TEST(CheckSuperblock, ANewerFormatIsNotJudged) {
  Planted store;
  store.superblock.incompatible_features = 1;
  store.write();
  const auto report = check_device(store.device, {});
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, Errc::kInvalid);
}

TEST(CheckSuperblock, WhatIsNoStoreIsNotJudged) {
  SimulatedDevice empty({.size_bytes = kDeviceBytes});
  EXPECT_FALSE(check_device(empty, {}).has_value());
  SimulatedDevice tiny({.size_bytes = 64 * kKiB});
  EXPECT_FALSE(check_device(tiny, {}).has_value());
}

TEST(CheckSuperblock, ADeviceThatWasCutOffIsDamage) {
  Planted store;
  store.write();
  SimulatedDevice shorter({.size_bytes = kDeviceBytes - kMiB});
  std::vector<std::byte> bytes(kMiB);
  store.device.peek(0, bytes);
  shorter.poke(0, bytes);
  EXPECT_THAT(errors_of(check(shorter)), Contains(HasSubstr("cut off")));
}

TEST(CheckSuperblock, ADeviceThatGrewIsClean) {
  Planted store;
  store.write();
  SimulatedDevice longer({.size_bytes = kDeviceBytes + kMiB});
  std::vector<std::byte> bytes(kDeviceBytes);
  store.device.peek(0, bytes);
  longer.poke(0, bytes);
  const CheckReport report = check(longer);
  EXPECT_THAT(report.findings, IsEmpty()) << text_of(report);
}

}  // namespace
}  // namespace kvslot
