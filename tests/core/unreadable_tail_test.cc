// A value of the last batches that cannot be read: when the store opens for writing all the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/put_changes.h"
#include "tests/support/recovery_fixture.h"

namespace kvslot::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class UnreadableTail : public RecoveryTest {
 protected:
  [[nodiscard]] std::uint64_t offset_of(std::string_view key) const {
    const auto record = volume_->inspector().node(volume_->find(key)->node);
    return std::uint64_t{record->extents.front().device_block} * kBlockSizeBytes;
  }
  // One block of the journal.
  void put_together(const std::vector<std::string>& keys) {
    std::vector<ContentChange> changes;
    for (const std::string& key : keys)
      changes.push_back(
          change_for_put(*volume_, key, bytes_of(value_of(key[0] + key.size(), 5000))));
    volume_->commit(changes, "test");
    for (const ContentChange& change : changes) EXPECT_TRUE(change.result);
  }
  // Power was lost before `missing` got there, and a sector of `unreadable` went bad in it.
  std::unique_ptr<SimulatedDevice> left_without(std::string_view missing,
                                                std::string_view unreadable) {
    auto left = device_->survivor(1, CrashMode::kAll);
    if (!missing.empty()) left->poke(offset_of(missing), std::vector<std::byte>(kBlockSizeBytes));
    left->add_fault(
        {.kind = OperationKind::kRead, .offset_bytes = offset_of(unreadable), .size_bytes = 512});
    return left;
  }
};

TEST_F(UnreadableTail, BehindWhereTheLogEndsItDoesNotKeepTheStoreFromOpening) {
  for (const bool is_one_batch : {false, true}) {
    SCOPED_TRACE(is_one_batch);
    open(make_device(16 * kMiB));
    put_durably("a");
    put("b");
    is_one_batch ? put_together({"missing", "unreadable"})
                 : (put("missing"), put("between"), put("unreadable"));
    ASSERT_NO_FATAL_FAILURE(open(left_without("missing", "unreadable")));
    EXPECT_THAT(keys(), ElementsAre("a", "b"));
    put_durably("c");
    device_->clear_faults();
    ASSERT_NO_FATAL_FAILURE(crash());
    EXPECT_THAT(keys(), ElementsAre("a", "b", "c"));
    for (const std::string& key : keys()) expect_value(key);
    expect_slots_accounted(*volume_);
  }
}

// It may have been flushed, and somebody have been told; what is missing behind it was not.
TEST_F(UnreadableTail, BeforeWhereTheLogEndsNobodyKnowsAndNothingIsWritten) {
  put_durably("a");
  put("unreadable");
  put("missing");
  const std::shared_ptr<SimulatedDevice> dead = device_;
  auto left = left_without("missing", "unreadable");
  const auto before = bytes_of_device(*left);
  const auto opened = try_open(std::move(left));
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().step, HasSubstr("mount with -o ro"));
  EXPECT_TRUE(bytes_of_device(*device_) == before);
}

// The note that follows an idle time says that it was durable: nothing else is in doubt.
TEST_F(UnreadableTail, ANoteThatItWasDurableMakesItDamageOfThisValueAlone) {
  put_durably("a");
  put_durably("unreadable");
  volume_->record_durable();
  ASSERT_NO_FATAL_FAILURE(open(left_without("", "unreadable")));
  EXPECT_THAT(keys(), ElementsAre("a", "unreadable"));
  const auto value = read_key(*volume_, "unreadable");
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().code, Errc::kIo);
  put_durably("b");
  ASSERT_NO_FATAL_FAILURE(crash());
  expect_value("a");
  expect_value("b");
}

}  // namespace
}  // namespace kvslot::testing
