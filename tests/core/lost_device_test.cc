// A store whose device stops answering, or is gone: who is told what, and what is there afterwards.
// The tests say when the device's time is over; no clock does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/batcher.h>
#include <kvslot/volume.h>
#include <kvslot/watched_device.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "core/put_changes.h"
#include "tests/support/engine.h"

namespace kvslot::testing {
namespace {

constexpr std::uint64_t kDeviceSizeBytes = 16 * kMiB;

class LostDeviceTest : public ::testing::Test {
 protected:
  LostDeviceTest() : device_(make_device(kDeviceSizeBytes)) { open(); }

  Result<std::unique_ptr<Volume>> try_open() {
    auto watched = std::make_unique<WatchedDevice>(std::make_unique<BorrowedDevice>(device_),
                                                   WatchOptions{.deadline = {}});
    watched_ = watched.get();
    return Volume::open(std::move(watched), {.seed = 1});
  }
  void open() {
    auto volume = try_open();
    ASSERT_TRUE(volume) << volume.error().step;
    volume_ = std::move(*volume);
    volume_->inspector().on_stopped([this](const FaultRecord& fault) { told_.push_back(fault); });
  }
  // The call, which the device holds, until the test says that its time is over.
  template <typename Call>
  auto expired(OperationKind held, Call call) {
    device_->hold(held);
    const std::size_t held_before = device_->held_count();
    auto answer = std::async(std::launch::async, call);
    device_->wait_until_held(held_before + 1);
    watched_->expire();
    return answer.get();
  }
  void put_durably(const std::string& key) {
    ASSERT_TRUE(put_key(*volume_, key, key + " value"));
    ASSERT_TRUE(volume_->flush());
  }
  std::vector<std::string> operations() {
    std::vector<std::string> operations;
    for (const FaultRecord& fault : volume_->inspector().faults())
      operations.push_back(fault.operation);
    return operations;
  }
  void expect_stopped(int os_errno) {
    EXPECT_TRUE(volume_->is_read_only());
    EXPECT_EQ(operations(), std::vector<std::string>{"device"}) << "one clear line";
    ASSERT_EQ(told_.size(), 1U);
    EXPECT_EQ(told_[0].os_errno, os_errno);
    const auto refused = put_key(*volume_, "later", "x");
    ASSERT_FALSE(refused);
    EXPECT_EQ(to_errno(refused.error()), EROFS);
    EXPECT_FALSE(volume_->flush());
    EXPECT_FALSE(volume_->checkpoint());
  }
  // The device as it comes back; everything under way was lost.
  void come_back() {
    auto left = device_->survivor(7, CrashMode::kNone);
    device_->release();
    EXPECT_FALSE(volume_->close());
    volume_.reset();
    told_.clear();
    device_ = std::move(left);
    open();
  }

  std::shared_ptr<SimulatedDevice> device_;
  WatchedDevice* watched_ = nullptr;
  std::unique_ptr<Volume> volume_;
  std::vector<FaultRecord> told_;
};

TEST_F(LostDeviceTest, APutThatIsNotAnsweredFailsAndStopsTheStore) {
  put_durably("before");
  const auto put = expired(OperationKind::kWrite, [&] { return put_key(*volume_, "hung", "x"); });
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Errc::kIo);
  EXPECT_EQ(put.error().os_errno, ETIMEDOUT);
  expect_stopped(ETIMEDOUT);
  EXPECT_EQ(stat_of(*volume_, "slots_quarantined"), 0U);
  EXPECT_EQ(stat_of(*volume_, "device_timeouts"), 1U) << "nothing was tried again";
  EXPECT_EQ(read_key(*volume_, "before").value_or(""), "before value");
  come_back();
  EXPECT_EQ(read_key(*volume_, "before").value_or(""), "before value");
  EXPECT_FALSE(volume_->find("hung"));
  EXPECT_TRUE(put_key(*volume_, "after", "x"));
}

TEST_F(LostDeviceTest, AFlushThatIsNotAnsweredAcknowledgesNobody) {
  put_durably("before");
  ASSERT_TRUE(put_key(*volume_, "written", "x"));
  const auto flushed = expired(OperationKind::kFlush, [&] { return volume_->flush(); });
  ASSERT_FALSE(flushed);
  EXPECT_EQ(flushed.error().os_errno, ETIMEDOUT);
  expect_stopped(ETIMEDOUT);
  come_back();
  EXPECT_TRUE(volume_->find("before"));
}

TEST_F(LostDeviceTest, AReadThatIsNotAnsweredIsEioAndAStoreThatAnswersAgainIsRead) {
  put_durably("key");
  const auto read = expired(OperationKind::kRead, [&] { return read_key(*volume_, "key"); });
  ASSERT_FALSE(read);
  EXPECT_EQ(to_errno(read.error()), EIO);
  expect_stopped(ETIMEDOUT);
  EXPECT_EQ(stat_of(*volume_, "read_failures"), 1U);
  EXPECT_EQ(stat_of(*volume_, "device_overdue"), 1U);
  device_->release();
  EXPECT_EQ(read_key(*volume_, "key").value_or(""), "key value");
}

TEST_F(LostDeviceTest, ACheckpointThatIsNotAnsweredStopsTheStore) {
  put_durably("key");
  const auto written = expired(OperationKind::kWrite, [&] { return volume_->checkpoint(); });
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().os_errno, ETIMEDOUT);
  EXPECT_TRUE(volume_->is_read_only());
  ASSERT_EQ(told_.size(), 1U);
  EXPECT_EQ(stat_of(*volume_, "slots_quarantined"), 0U);
  come_back();
  EXPECT_TRUE(volume_->find("key"));
}

TEST_F(LostDeviceTest, ClosingWhileTheDeviceHangsEndsAndSaysSo) {
  put_durably("durable");
  ASSERT_TRUE(put_key(*volume_, "written", "x"));
  for (const OperationKind held : {OperationKind::kWrite, OperationKind::kFlush}) {
    const auto closed = expired(held, [&] { return volume_->close(); });
    EXPECT_FALSE(closed);
    auto left = device_->survivor(7, CrashMode::kNone);
    device_->release();
    volume_.reset();
    device_ = std::move(left);
    open();
    EXPECT_TRUE(volume_->find("durable"));
    ASSERT_TRUE(put_key(*volume_, "written", "x"));
  }
}

TEST_F(LostDeviceTest, OpeningADeviceThatHangsFailsAfterOneAttempt) {
  volume_.reset();
  device_->hold(OperationKind::kRead);
  auto opened = std::async(std::launch::async, [&] { return try_open(); });
  device_->wait_until_held(1);
  watched_->expire();
  const auto volume = opened.get();
  ASSERT_FALSE(volume);
  EXPECT_EQ(volume.error().os_errno, ETIMEDOUT);
  EXPECT_EQ(device_->held_count(), 1U);
  device_->release();
}

TEST_F(LostDeviceTest, MemoryOfAPutIsNotUsedAgainWhileTheDeviceHasIt) {
  const std::string value = value_of(1, 200'000);
  const auto put = expired(OperationKind::kWrite, [&] { return put_key(*volume_, "hung", value); });
  EXPECT_FALSE(put);
  volume_.reset();     // with its buffers and their pool
  device_->release();  // the device reads them now; the sanitizers say whether it may
  while (device_.use_count() > 1) std::this_thread::yield();
}

class FailedFlushTest : public LostDeviceTest, public ::testing::WithParamInterface<bool> {};

TEST_P(FailedFlushTest, EverybodyWhoWaitsIsTold) {
  const bool hangs = GetParam();
  Batcher batcher(*volume_, {.commit_interval_ms = 3'600'000});
  if (!hangs) device_->add_fault({.kind = OperationKind::kFlush});
  device_->hold(OperationKind::kFlush);
  std::vector<std::promise<Result<void>>> answers(8);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const std::string key = "key" + std::to_string(i);
    const auto node = volume_->create(NodeId::kRoot, key, NodeKind::kFile, {});
    ASSERT_TRUE(node);
    ContentChange change = change_for_put(*volume_, {}, bytes_of(key));
    change.node = node->node;
    batcher.submit(std::move(change), Durability::kDurable, [&answers, i](ContentChange done) {
      answers[i].set_value(std::move(done.result));
    });
  }
  device_->wait_until_held(1);
  if (hangs)
    watched_->expire();
  else
    device_->release();
  for (auto& answer : answers) EXPECT_FALSE(answer.get_future().get());
  batcher.close();
  EXPECT_TRUE(volume_->is_read_only());
  EXPECT_EQ(told_.size(), 1U);
  EXPECT_EQ(operations().size(), 1U);
  EXPECT_EQ(stat_of(*volume_, "flush_failures"), 1U);
  device_->release();
}

INSTANTIATE_TEST_SUITE_P(Device, FailedFlushTest, ::testing::Bool(),
                         [](const auto& hangs) { return hangs.param ? "Hangs" : "Fails"; });

class GoneDeviceTest : public LostDeviceTest, public ::testing::WithParamInterface<int> {};

TEST_P(GoneDeviceTest, StopsWithOneLineAndHasEverythingAcknowledgedWhenItIsBack) {
  for (int i = 0; i < 20; ++i) put_durably("key" + std::to_string(i));
  auto left = device_->survivor(7, CrashMode::kNone);
  device_->crash_after_operations(0, GetParam());
  const auto put = put_key(*volume_, "lost", value_of(1, 50'000));
  ASSERT_FALSE(put);
  EXPECT_TRUE(volume_->is_read_only());
  EXPECT_EQ(operations().size(), 1U) << "one clear line";
  ASSERT_EQ(told_.size(), 1U);
  for (int i = 0; i < 400; ++i) {
    const auto read = read_key(*volume_, "key1");
    ASSERT_FALSE(read);
    EXPECT_EQ(to_errno(read.error()), EIO);
  }
  const auto faults = volume_->inspector().faults();
  EXPECT_EQ(faults.front().operation, told_[0].operation) << "it is still listed";
  EXPECT_EQ(stat_of(*volume_, "read_failures"), 400U);
  EXPECT_FALSE(volume_->flush());
  EXPECT_FALSE(volume_->close());
  EXPECT_EQ(told_.size(), 1U);
  volume_.reset();
  device_ = std::move(left);
  open();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(read_key(*volume_, "key" + std::to_string(i)));
}

INSTANTIATE_TEST_SUITE_P(Errors, GoneDeviceTest, ::testing::Values(ENODEV, ENXIO, EIO));

TEST_F(LostDeviceTest, InflightShowsWhereAPutIsAndWhoWaits) {
  ContentChange changes[3];
  const auto fill = [&] {
    for (ContentChange& change : changes) change = change_for_put(*volume_, "same", bytes_of("x"));
    changes[2].key = "other";
  };
  fill();
  device_->hold(OperationKind::kAny);
  auto done = std::async(std::launch::async,
                         [&] { return volume_->flush_until(volume_->commit(changes)); });
  device_->wait_until_held(1);
  const auto expect_listed = [&](InflightState state) {
    auto listed = volume_->inspector().inflight();
    ASSERT_EQ(listed.size(), 2U);
    EXPECT_EQ(listed[0].key, "same");
    EXPECT_EQ(listed[0].waiters, 2U);
    EXPECT_EQ(listed[1].waiters, 1U);
    for (const auto& record : listed) EXPECT_EQ(to_string(record.state), to_string(state));
  };
  expect_listed(InflightState::kSubmitted);
  EXPECT_EQ(stat_of(*volume_, "puts_inflight"), 2U);
  const std::size_t before = device_->calls().size();
  device_->let_pass(1);
  while (device_->calls().size() == before) std::this_thread::yield();  // the flush has come
  device_->wait_until_held(1);
  expect_listed(InflightState::kFlushing);
  EXPECT_EQ(stat_of(*volume_, "puts_inflight"), 0U);
  device_->release();
  EXPECT_TRUE(done.get());
  EXPECT_TRUE(volume_->inspector().inflight().empty());
}

}  // namespace
}  // namespace kvslot::testing
