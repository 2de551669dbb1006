// The check against stores that the engine wrote, closed, left open, or lost power under.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/store.h>

#include <algorithm>
#include <array>
#include <random>

#include "tests/support/check_report.h"
#include "tests/support/engine.h"
#include "tests/support/planted_store.h"

namespace kvslot {
namespace {

using testing::bytes_of;
using testing::check;
using testing::CrashMode;
using ::testing::ElementsAre;
using testing::errors_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kDeviceBytes;
using testing::remarks_of;
using testing::SimulatedDevice;
using testing::text_of;
using testing::value_of;

class EngineStore : public testing::StoreHarness {
 public:
  explicit EngineStore(std::uint32_t slot_size_bytes = 4096, std::uint64_t seed = 1)
      : StoreHarness(kDeviceBytes, slot_size_bytes, {.seed = seed}) {}
  explicit EngineStore(std::unique_ptr<SimulatedDevice> device) : StoreHarness(std::move(device)) {}

  Store* operator->() { return &store(); }
  // As the next process finds it.
  [[nodiscard]] std::unique_ptr<SimulatedDevice> left_behind() { return device().process_crash(); }

  void put(const std::string& key, const std::string& value,
           Durability durability = Durability::kWritten) {
    const auto ok = store().put(key, bytes_of(value), {.durability = durability});
    EXPECT_TRUE(ok.has_value() || device().is_crashed()) << (ok ? "" : ok.error().step);
  }
};

void use(EngineStore& store) {
  for (int i = 0; i < 200; ++i)
    store.put("dir" + std::to_string(i % 7) + "/key" + std::to_string(i),
              value_of(static_cast<std::uint64_t>(i), static_cast<std::size_t>(i) * 37));
  ASSERT_TRUE(store->checkpoint().has_value());
  store.put("large", value_of(1, 700'000));
  store.put("large", value_of(2, 300'000));
  for (int i = 0; i < 50; ++i)
    ASSERT_TRUE(store->remove("dir" + std::to_string(i % 7) + "/key" + std::to_string(i)));
  ASSERT_TRUE(store->flush().has_value());
  for (int i = 50; i < 60; ++i)
    ASSERT_TRUE(store->rename("dir" + std::to_string(i % 7) + "/key" + std::to_string(i),
                              "moved/key" + std::to_string(i)));
  ASSERT_TRUE(store->rename("dir6", "moved/dir"));
  ASSERT_TRUE(store->checkpoint().has_value());
  for (int i = 0; i < 100; ++i)
    store.put("again" + std::to_string(i), value_of(static_cast<std::uint64_t>(i), 5000));
}

TEST(CheckEngine, AHealthyClosedStoreIsClean) {
  for (const std::uint32_t slot_size : {4096u, 65536u, 1u << 20}) {
    EngineStore store(slot_size);
    if (slot_size < (1u << 20)) {
      use(store);
    } else {
      store.put("a", value_of(1, 300'000));
      store.put("b", value_of(2, 2'500'000));
    }
    ASSERT_TRUE(store->close().has_value());
    const auto left = store.left_behind();
    const CheckReport report = check(*left);
    EXPECT_FALSE(report.damaged) << text_of(report);
    EXPECT_THAT(report.findings, IsEmpty()) << text_of(report);
    if (slot_size < (1u << 20)) {
      EXPECT_EQ(report.keys, 251);
      EXPECT_EQ(report.directories, 8);
    }
    EngineStore again(store.left_behind());
    EXPECT_EQ(again->list()->size(), report.keys);
  }
}

TEST(CheckEngine, AStoreThatWasNotClosedIsCleanWithARemark) {
  EngineStore store;
  use(store);
  ASSERT_TRUE(store->flush().has_value());
  const auto left = store.left_behind();
  const CheckReport report = check(*left);
  EXPECT_FALSE(report.damaged) << text_of(report);
  EXPECT_THAT(remarks_of(report), ElementsAre(HasSubstr("the store was not closed")));
  EXPECT_EQ(report.keys, 251);
  EXPECT_GT(report.journal_blocks, 0);
}

TEST(CheckEngine, ProgressIsInBytesAndEndsAtTheTotal) {
  EngineStore store;
  use(store);
  ASSERT_TRUE(store->close().has_value());
  std::uint64_t last = 0;
  std::uint64_t last_total = 0;
  const auto left = store.left_behind();
  left->clear_calls();
  const auto report =
      check_device(*left, {.verify_values = true, .on_progress = [&](auto done, auto total) {
                             EXPECT_GT(done, last);
                             last = done;
                             last_total = total;
                           }});
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(last, last_total);
  EXPECT_EQ(last, report->values_bytes);  // no holes in these
  const auto calls = left->calls();
  EXPECT_TRUE(std::ranges::any_of(calls, [](const auto& call) { return call.reads > 1; }))
      << "reads are under way together";
}

TEST(CheckEngine, AFlippedByteInAnyValueIsFound) {
  EngineStore store;
  const std::vector<std::size_t> sizes = {16, 100, 4032, 4096, 5000, 131072, 140000, 700001};
  const auto value_for = [](std::size_t size) { return value_of(size << 32, size); };
  for (const std::size_t size : sizes)
    store.put("v" + std::to_string(size), value_for(size), Durability::kDurable);
  ASSERT_TRUE(store->close().has_value());
  const auto left = store.left_behind();
  ASSERT_THAT(check(*left).findings, IsEmpty());
  std::vector<std::byte> bytes(kDeviceBytes);
  left->peek(0, bytes);
  for (const std::size_t size : sizes) {
    const std::string value = value_for(size);
    const auto start = bytes_of(value).first(16);
    const auto found = std::search(bytes.begin(), bytes.end(), start.begin(), start.end());
    ASSERT_NE(found, bytes.end());
    const auto offset = static_cast<std::uint64_t>(found - bytes.begin());
    for (const std::uint64_t at : {std::uint64_t{0}, size / 2, size - 1}) {
      left->flip_bit(offset + at, 5);
      EXPECT_THAT(errors_of(check(*left)),
                  ElementsAre(HasSubstr("'v" + std::to_string(size) + "': bytes ")));
      EXPECT_FALSE(check(*left, false).damaged) << "values were not to be verified";
      left->flip_bit(offset + at, 5);
    }
  }
}

TEST(CheckEngine, ADamagedNewestCheckpointIsRecoverableAndTheStoreOpens) {
  EngineStore store;
  use(store);
  ASSERT_TRUE(store->close().has_value());
  const auto left = store.left_behind();
  const Superblock superblock = *read_superblock(*left);
  left->flip_bit(superblock.geometry.slots_offset_bytes +
                     std::uint64_t{superblock.current.manifest_slot} * kBlockSizeBytes + 30,
                 1);
  const CheckReport report = check(*left);
  EXPECT_THAT(errors_of(report), ElementsAre(HasSubstr("can be recovered")));
  EXPECT_EQ(report.keys, 251);
  EngineStore again(left->process_crash());
  EXPECT_EQ(again->list()->size(), 251);
}

// Whatever a crash leaves, the check calls it clean and counts what the next open finds.
TEST(CheckEngine, WhatCrashesLeaveIsCleanAndAgreesWithRecovery) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    EngineStore store(4096, seed);
    std::mt19937_64 random(seed);
    store.device().crash_after_operations(20 + random() % 400);
    for (int i = 0; i < 400 && !store.device().is_crashed(); ++i) {
      const std::string key =
          "d" + std::to_string(random() % 5) + "/k" + std::to_string(random() % 40);
      switch (random() % 12) {
        case 0:
          static_cast<void>(store->remove(key));
          break;
        case 1:
          static_cast<void>(store->rename(key, "e/k" + std::to_string(random() % 40)));
          break;
        case 2:
          static_cast<void>(store->flush());
          break;
        case 3:
          if (random() % 4 == 0) static_cast<void>(store->checkpoint());
          break;
        default:
          store.put(key, value_of(random(), random() % 20'000));
      }
    }
    constexpr std::array kModes = {CrashMode::kNone, CrashMode::kAll, CrashMode::kRandom,
                                   CrashMode::kPrefix};
    auto survivor = store.device().survivor(seed, kModes[seed % kModes.size()]);
    const CheckReport report = check(*survivor);
    EXPECT_FALSE(report.damaged) << text_of(report);
    EXPECT_LE(remarks_of(report).size(), 1U) << "a crash is no reason for noise";
    EngineStore again(std::move(survivor));
    EXPECT_EQ(again->list()->size(), report.keys) << text_of(report);
  }
}

}  // namespace
}  // namespace kvslot
