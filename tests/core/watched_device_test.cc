// A device that does not answer: who waits how long, and what becomes of the memory it holds.
// Nothing here waits for a clock: the tests say when time is over.
#include <kvslot/volume.h>
#include <kvslot/watched_device.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/loan.h"
#include "tests/support/engine.h"

namespace kvslot::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNever{0};

enum class Waits { kOnAThread, kHere };

// What its caller left: a thread of the test's that stands in the device below.
class LateThread final : public LateRequests {
 public:
  LateThread(std::shared_ptr<Device> device, std::span<const IoRequest> requests)
      : requests_(requests.begin(), requests.end()) {
    for (const IoRequest& request : requests_)
      segments_.emplace_back(request.segments.begin(), request.segments.end());
    for (std::size_t i = 0; i < requests_.size(); ++i) requests_[i].segments = segments_[i];
    thread_ = std::thread([this, below = std::move(device)] {
      below->run(requests_);
      is_done_ = true;
    });
  }
  void wait() override { thread_.join(); }
  [[nodiscard]] bool is_done() const { return is_done_; }
  [[nodiscard]] int error(std::size_t i) const { return requests_[i].error; }

 private:
  std::vector<IoRequest> requests_;
  std::vector<std::vector<iovec>> segments_;
  std::atomic<bool> is_done_ = false;
  std::thread thread_;
};

// A device that the test keeps, and whose transfers can be left, or not.
class LentDevice final : public BorrowedDevice {
 public:
  LentDevice(std::shared_ptr<Device> device, Waits waits, std::atomic<pid_t>& flusher)
      : BorrowedDevice(std::move(device)), waits_(waits), flusher_(flusher) {}
  [[nodiscard]] bool run_or_leave(std::span<IoRequest> requests,
                                  const std::function<bool()>& is_over,
                                  std::unique_ptr<LateRequests>& late) override {
    if (waits_ == Waits::kOnAThread) return false;
    auto thread = std::make_unique<LateThread>(device_, requests);
    while (!thread->is_done()) {
      if (is_over()) {
        late = std::move(thread);
        return true;
      }
      std::this_thread::yield();
    }
    thread->wait();
    for (std::size_t i = 0; i < requests.size(); ++i) requests[i].error = thread->error(i);
    return true;
  }
  [[nodiscard]] Result<void> flush() override {
    flusher_ = ::gettid();
    return device_->flush();
  }

 private:
  const Waits waits_;
  std::atomic<pid_t>& flusher_;
};

class WatchedDeviceTest : public ::testing::TestWithParam<Waits> {
 protected:
  // Until no thread is left that the device held.
  void TearDown() override {
    device_->release();
    watched_.reset();
    while (device_.use_count() > 1) std::this_thread::yield();
  }
  void watch(const WatchOptions& options = {.deadline = kNever}) {
    watched_ = std::make_unique<WatchedDevice>(
        std::make_unique<LentDevice>(device_, GetParam(), flusher_), options);
  }
  // An errno, once the call returns.
  std::future<int> begin(IoOp op, Buffer& buffer, std::uint64_t offset_bytes = 0) {
    return std::async(std::launch::async, [this, op, &buffer, offset_bytes] {
      const iovec segment{buffer.data(), buffer.capacity()};
      IoRequest request{.op = op, .offset_bytes = offset_bytes, .segments = {&segment, 1}};
      watched_->run({&request, 1});
      return request.error;
    });
  }
  void wait_until_overdue(std::uint64_t count) {
    while (watched_->counters().overdue != count) std::this_thread::yield();
  }

  std::atomic<pid_t> flusher_ = 0;  // the thread of the last flush
  std::shared_ptr<SimulatedDevice> device_ = std::make_shared<SimulatedDevice>();
  std::unique_ptr<WatchedDevice> watched_;
};

TEST_P(WatchedDeviceTest, CarriesOutWhatTheDeviceInsideDoes) {
  watch();
  Buffer written = Buffer::from_heap(8192);
  std::memset(written.data(), 'x', written.capacity());
  const iovec segments[] = {{written.data(), 4096}, {written.data() + 4096, 4096}};
  IoRequest requests[] = {
      {.op = IoOp::kWrite, .offset_bytes = 4096, .segments = {segments, 2}},
      {.op = IoOp::kRead, .offset_bytes = 1ULL << 40, .segments = {segments, 1}}};
  watched_->run(requests);
  EXPECT_EQ(requests[0].error, 0);
  EXPECT_EQ(requests[1].error, EIO);  // its own, and no neighbour's
  EXPECT_TRUE(watched_->flush());
  EXPECT_EQ(device_->unflushed_write_count(), 0U);
  Buffer read = Buffer::from_heap(8192);
  EXPECT_EQ(begin(IoOp::kRead, read, 4096).get(), 0);
  EXPECT_EQ(std::memcmp(read.data(), written.data(), 8192), 0);
  watched_->discard(4096, 8192);
  EXPECT_EQ(begin(IoOp::kRead, read, 4096).get(), 0);
  EXPECT_EQ(read.data()[0], std::byte{0});
  device_->add_fault({.kind = OperationKind::kFlush, .error = ENOSPC});
  EXPECT_EQ(watched_->flush().error().os_errno, ENOSPC);
  EXPECT_EQ(watched_->counters().timeouts, 0U);
  EXPECT_EQ(watched_->info().engine, "simulated");
}

TEST_P(WatchedDeviceTest, ACallThatIsNotAnsweredFailsWhenItsTimeIsOver) {
  watch();
  Buffer buffer = Buffer::from_heap(4096);
  device_->hold(OperationKind::kAny);
  auto read = begin(IoOp::kRead, buffer);
  auto flush = std::async(std::launch::async, [this] { return watched_->flush(); });
  device_->wait_until_held(2);
  EXPECT_EQ(watched_->counters().overdue, 0U);  // held is not overdue
  watched_->expire();
  EXPECT_EQ(read.get(), ETIMEDOUT);
  const auto flushed = flush.get();
  ASSERT_FALSE(flushed);
  EXPECT_EQ(flushed.error().code, Errc::kIo);
  EXPECT_EQ(flushed.error().os_errno, ETIMEDOUT);
  EXPECT_EQ(watched_->counters().timeouts, 2U);
  EXPECT_EQ(watched_->counters().overdue, 2U);
  device_->release();
  wait_until_overdue(0);
  EXPECT_EQ(begin(IoOp::kRead, buffer).get(), 0);
}

TEST_P(WatchedDeviceTest, TheDeadlineRunsOutByItself) {
  watch({.deadline = milliseconds(1)});
  Buffer buffer = Buffer::from_heap(4096);
  device_->hold(OperationKind::kRead);
  EXPECT_EQ(begin(IoOp::kRead, buffer).get(), ETIMEDOUT);
  device_->release();
}

TEST_P(WatchedDeviceTest, ADeadlineThatIsSetLaterHoldsForWhatIsUnderWay) {
  watch();
  Buffer buffer = Buffer::from_heap(4096);
  device_->hold(OperationKind::kWrite);
  auto write = begin(IoOp::kWrite, buffer);
  device_->wait_until_held(1);
  watched_->set_deadline(milliseconds(1));
  EXPECT_EQ(write.get(), ETIMEDOUT);
  device_->release();
}

TEST_P(WatchedDeviceTest, MemoryStaysUntouchedUntilTheDeviceLetsItGo) {
  watch();
  BufferPool pool(4 * kMiB);
  const std::size_t kept_before = Loan::kept_count();
  {
    Buffer of_pool = pool.take(8192);
    Buffer of_heap = Buffer::from_heap(8192);
    device_->hold(OperationKind::kAny);
    auto first = begin(IoOp::kRead, of_pool);
    auto second = begin(IoOp::kWrite, of_heap);
    device_->wait_until_held(2);
    watched_->expire();
    EXPECT_EQ(first.get(), ETIMEDOUT);
    EXPECT_EQ(second.get(), ETIMEDOUT);
  }
  EXPECT_EQ(Loan::kept_count(), kept_before + 2);
  EXPECT_EQ(pool.used_bytes(), 8192U);  // nobody else gets it
  std::vector<Buffer> others;
  while (Buffer other = pool.take(8192)) others.push_back(std::move(other));
  EXPECT_EQ(others.size(), 4 * kMiB / 8192 - 1);
  others.clear();
  device_->release();
  wait_until_overdue(0);
  EXPECT_EQ(Loan::kept_count(), kept_before);
  EXPECT_EQ(pool.used_bytes(), 0U);
}

TEST_P(WatchedDeviceTest, APoolMayEndBeforeTheDeviceLetsItsMemoryGo) {
  watch();
  device_->hold(OperationKind::kRead);
  {
    BufferPool pool(4 * kMiB);
    Buffer buffer = pool.take(8192);
    auto read = begin(IoOp::kRead, buffer);
    device_->wait_until_held(1);
    watched_->expire();
    EXPECT_EQ(read.get(), ETIMEDOUT);
  }
  device_->release();
  wait_until_overdue(0);  // the device wrote into memory that is still there
}

TEST_P(WatchedDeviceTest, WhileTheDeviceIsSilentOneCallTriesItAndTheOthersFailAtOnce) {
  watch();
  std::vector<Buffer> buffers;
  for (int i = 0; i < 10; ++i) buffers.push_back(Buffer::from_heap(4096));
  device_->hold(OperationKind::kRead);
  auto first = begin(IoOp::kRead, buffers[0]);
  device_->wait_until_held(1);
  watched_->expire();
  EXPECT_EQ(first.get(), ETIMEDOUT);
  auto probe = begin(IoOp::kRead, buffers[1]);
  device_->wait_until_held(2);
  for (int i = 2; i < 10; ++i)
    EXPECT_EQ(begin(IoOp::kRead, buffers[static_cast<std::size_t>(i)]).get(), ETIMEDOUT);
  EXPECT_EQ(device_->held_count(), 2U);
  device_->let_pass(2);  // it answers again
  EXPECT_EQ(probe.get(), 0);
  wait_until_overdue(0);
  device_->release();
  EXPECT_EQ(begin(IoOp::kRead, buffers[2]).get(), 0);
}

TEST_P(WatchedDeviceTest, ThreadsThatTheDeviceHoldsAreBounded) {
  if (GetParam() == Waits::kHere) GTEST_SKIP() << "there are as many as there are callers";
  watch({.deadline = kNever, .threads_max = 3});
  std::vector<Buffer> buffers;
  for (int i = 0; i < 8; ++i) buffers.push_back(Buffer::from_heap(4096));
  device_->hold(OperationKind::kRead);
  std::vector<std::future<int>> reads;
  for (std::size_t i = 0; i < 5; ++i) reads.push_back(begin(IoOp::kRead, buffers[i]));
  device_->wait_until_held(3);
  while (watched_->counters().timeouts < 5) {  // some may not have come yet
    watched_->expire();
    std::this_thread::yield();
  }
  for (auto& read : reads) EXPECT_EQ(read.get(), ETIMEDOUT);
  EXPECT_EQ(watched_->counters().overdue, 3U);
  EXPECT_EQ(begin(IoOp::kRead, buffers[5]).get(), ETIMEDOUT);  // at once: nobody could try it
  device_->release();
  wait_until_overdue(0);
  EXPECT_EQ(begin(IoOp::kRead, buffers[5]).get(), 0);
}

TEST_P(WatchedDeviceTest, EndsWhileTheDeviceHoldsACall) {
  watch();
  Buffer buffer = Buffer::from_heap(4096);
  device_->hold(OperationKind::kRead);
  auto read = begin(IoOp::kRead, buffer);
  device_->wait_until_held(1);
  watched_->expire();
  EXPECT_EQ(read.get(), ETIMEDOUT);
  watched_.reset();
  EXPECT_GT(device_.use_count(), 1);  // the thread that is held keeps the device
  device_->release();
  while (device_.use_count() > 1) std::this_thread::yield();
}

// Other threads of the process come and go, so those of a call are known by their numbers.
TEST_P(WatchedDeviceTest, ThreadsCanBeRetiredBetweenCalls) {
  watch();
  const auto is_there = [](pid_t thread) { return ::tgkill(::getpid(), thread, 0) == 0; };
  ASSERT_TRUE(watched_->flush());
  const pid_t first = flusher_;
  ASSERT_NE(first, ::gettid());
  EXPECT_TRUE(is_there(first));
  watched_->retire_threads();
  EXPECT_FALSE(is_there(first));
  EXPECT_TRUE(watched_->flush());
}

TEST_P(WatchedDeviceTest, ManyCallersAreServedAtOnce) {
  watch();
  std::vector<Buffer> buffers;
  for (int i = 0; i < 32; ++i) buffers.push_back(Buffer::from_heap(4096));
  device_->hold(OperationKind::kRead);
  std::vector<std::future<int>> reads;
  for (Buffer& buffer : buffers) reads.push_back(begin(IoOp::kRead, buffer));
  device_->wait_until_held(buffers.size());
  device_->release();
  for (auto& read : reads) EXPECT_EQ(read.get(), 0);
}

INSTANTIATE_TEST_SUITE_P(Callers, WatchedDeviceTest,
                         ::testing::Values(Waits::kOnAThread, Waits::kHere),
                         [](const auto& tested) {
                           return tested.param == Waits::kHere ? "WaitHere" : "WaitForAThread";
                         });

}  // namespace
}  // namespace kvslot::testing
