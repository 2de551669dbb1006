// A device that lost its end, as a partition that was made again a little smaller: what it still
// holds can be read, and is not written to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/recovery_fixture.h"

namespace kvslot::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CutDevice : public RecoveryTest {
 protected:
  [[nodiscard]] std::unique_ptr<SimulatedDevice> without_end(std::uint64_t cut_bytes) const {
    const std::vector<std::byte> all = bytes_of_device(*device_);
    auto shorter = std::make_unique<SimulatedDevice>(
        SimulatedDeviceOptions{.size_bytes = all.size() - cut_bytes});
    shorter->poke(0, ConstBytes(all).first(all.size() - cut_bytes));
    return shorter;
  }
  [[nodiscard]] std::string last_fault() const {
    const auto faults = volume_->inspector().faults();
    return faults.empty() ? "" : faults.back().action;
  }
};

TEST_F(CutDevice, IsReadWhereAllThatItHoldsIsThereAndNotWrittenTo) {
  for (const bool is_closed : {true, false}) {
    for (const std::uint64_t cut_bytes : {std::uint64_t{kBlockSizeBytes}, 3 * kMiB}) {
      SCOPED_TRACE(::testing::PrintToString(std::pair(is_closed, cut_bytes)));
      open(make_device(20 * kMiB));
      put_durably("a");
      ASSERT_TRUE(volume_->checkpoint());
      put_durably("b");
      if (is_closed) {
        ASSERT_TRUE(volume_->close());
      }
      const std::shared_ptr<SimulatedDevice> full = device_;
      const auto before = bytes_of_device(*without_end(cut_bytes));
      const auto refused = try_open(without_end(cut_bytes));
      ASSERT_FALSE(refused);
      EXPECT_THAT(refused.error().step, AllOf(HasSubstr("shorter than"), HasSubstr("-o ro")));
      EXPECT_TRUE(bytes_of_device(*device_) == before);
      device_ = full;
      ASSERT_TRUE(try_open(without_end(cut_bytes), {.read_only = true}));
      EXPECT_THAT(keys(), ElementsAre("a", "b"));
      expect_value("a");
      expect_value("b");
      EXPECT_THAT(last_fault(), AllOf(HasSubstr(std::to_string(20 * kMiB)),
                                      HasSubstr(std::to_string(20 * kMiB - cut_bytes)),
                                      HasSubstr("behind its end: 0")));
    }
  }
}

TEST_F(CutDevice, WhatLayBehindItsEndCannotBeReadAndIsCounted) {
  open(make_device(16 * kMiB));
  std::size_t count = 0;
  while (put_key(*volume_, "k" + std::to_string(count), value_of(count, 120'000))) ++count;
  ASSERT_TRUE(volume_->close());
  ASSERT_TRUE(try_open(without_end(kMiB), {.read_only = true}));
  const std::string said = last_fault();
  ASSERT_EQ(keys().size(), count);
  std::size_t lost = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = read_key(*volume_, "k" + std::to_string(i));
    if (!value) {
      EXPECT_EQ(value.error().code, Errc::kIo);
      ++lost;
    } else {
      EXPECT_TRUE(*value == value_of(i, 120'000));
    }
  }
  EXPECT_GT(lost, 3U);
  EXPECT_LT(lost, 12U);
  EXPECT_THAT(said, HasSubstr("behind its end: " + std::to_string(lost)));
}

}  // namespace
}  // namespace kvslot::testing
