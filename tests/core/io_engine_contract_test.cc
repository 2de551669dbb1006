// One body of tests for both engines, on an image file and, as root, on a loop device.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kvslot/buffer.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <latch>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/io_engine.h"
#include "core/leavable_ring.h"
#include "core/uring_engine.h"
#include "tests/support/loop_device.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

constexpr std::uint64_t kImageSizeBytes = 64 * kMiB;

enum class Target { kFile, kLoop };

// Requests of one block each, every one with memory of its own.
class Blocks {
 public:
  explicit Blocks(std::size_t count)
      : memory_(Buffer::from_heap(count * kBlockSizeBytes)), segments_(count), requests_(count) {}

  // Block i of the batch goes to device block first + i * step.
  std::span<IoRequest> prepare(IoOp op, std::uint64_t first, std::uint64_t step = 1) {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      segments_[i] = {block(i).data(), kBlockSizeBytes};
      requests_[i] = {.op = op,
                      .offset_bytes = (first + i * step) * kBlockSizeBytes,
                      .segments = {&segments_[i], 1},
                      .error = -1};
    }
    return requests_;
  }
  void fill(unsigned seed) {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      std::memset(block(i).data(), pattern(seed, i), kBlockSizeBytes);
    }
  }
  void clear() { std::memset(memory_.data(), 0xee, memory_.capacity()); }
  [[nodiscard]] bool holds(unsigned seed) {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const auto expected = static_cast<std::byte>(pattern(seed, i));
      if (std::ranges::any_of(block(i), [&](std::byte b) { return b != expected; })) return false;
    }
    return true;
  }
  [[nodiscard]] bool all_succeeded() const {
    return std::ranges::all_of(requests_, [](const IoRequest& r) { return r.error == 0; });
  }
  [[nodiscard]] Bytes block(std::size_t i) {
    return memory_.bytes().subspan(i * kBlockSizeBytes, kBlockSizeBytes);
  }

 private:
  static int pattern(unsigned seed, std::size_t i) {
    return static_cast<int>((std::size_t{seed} * 31 + i * 7 + 1) % 251);
  }
  Buffer memory_;
  std::vector<iovec> segments_;
  std::vector<IoRequest> requests_;
};

class EngineContract : public ::testing::TestWithParam<std::tuple<EngineChoice, Target>> {
 protected:
  void SetUp() override {
    std::string path = directory_.make_image("image", kImageSizeBytes);
    if (std::get<Target>(GetParam()) == Target::kLoop) {
      auto loop = testing::LoopDevice::attach(path);
      if (!loop) GTEST_SKIP() << loop.error().step << ": " << strerror(loop.error().os_errno);
      loop_.emplace(std::move(*loop));
      path = loop_->path();
    }
    fd_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT));
    if (!fd_) fd_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(fd_) << path << ": " << strerror(errno);
    engine_ = make_engine();
    if (!engine_) GTEST_SKIP() << "no io_uring here";
  }

  std::unique_ptr<IoEngine> make_engine(unsigned queue_depth_max = 256) {
    auto made = make_io_engine(
        {.choice = std::get<EngineChoice>(GetParam()), .queue_depth_max = queue_depth_max},
        counters_);
    return made ? std::move(*made) : nullptr;
  }
  [[nodiscard]] static bool is_uring() {
    return std::get<EngineChoice>(GetParam()) == EngineChoice::kUring;
  }
  // Writes a batch and reads it back.
  void expect_round_trip(IoEngine& engine, Blocks& blocks, unsigned seed, std::uint64_t first,
                         std::uint64_t step = 1) {
    blocks.fill(seed);
    engine.run(fd_.get(), blocks.prepare(IoOp::kWrite, first, step));
    EXPECT_TRUE(blocks.all_succeeded());
    blocks.clear();
    engine.run(fd_.get(), blocks.prepare(IoOp::kRead, first, step));
    EXPECT_TRUE(blocks.all_succeeded());
    EXPECT_TRUE(blocks.holds(seed)) << "seed " << seed;
  }

  testing::TempDir directory_;
  std::optional<testing::LoopDevice> loop_;
  UniqueFd fd_;
  IoCounters counters_;
  std::unique_ptr<IoEngine> engine_;
};

std::string name_of(const ::testing::TestParamInfo<EngineContract::ParamType>& info) {
  const bool is_uring = std::get<0>(info.param) == EngineChoice::kUring;
  return std::string(is_uring ? "Uring" : "Posix") +
         (std::get<1>(info.param) == Target::kLoop ? "OnLoop" : "OnFile");
}

TEST_P(EngineContract, ACallerThatMayLeaveGetsWhatRunGives) {
  if (!is_uring() || LeavableRing::open() == nullptr) GTEST_SKIP() << "nobody can leave";
  Blocks blocks(kLeavableRequestsMax);
  const auto never = [] { return false; };
  std::unique_ptr<LateRequests> late;
  int left_count = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    expect_round_trip(*engine_, blocks, seed, seed * 5);  // now there is something to overwrite
    blocks.fill(seed + 1);
    std::span<IoRequest> requests = blocks.prepare(IoOp::kWrite, seed * 5);
    if (!engine_->run_or_leave(fd_.get(), requests, never, late)) continue;
    EXPECT_TRUE(blocks.all_succeeded());
    blocks.clear();
    requests = blocks.prepare(IoOp::kRead, seed * 5);
    if (!engine_->run_or_leave(fd_.get(), requests, never, late)) continue;
    EXPECT_TRUE(blocks.all_succeeded());
    EXPECT_TRUE(blocks.holds(seed + 1));
    ++left_count;
  }
  EXPECT_EQ(late, nullptr);
  EXPECT_EQ(counters_.queue_depth, 0U);
  if (std::get<Target>(GetParam()) == Target::kLoop) {
    EXPECT_GT(left_count, 0);
  }
  Blocks many(kLeavableRequestsMax + 1);
  EXPECT_FALSE(engine_->run_or_leave(fd_.get(), many.prepare(IoOp::kRead, 0), never, late));
}

TEST_P(EngineContract, RetiredThreadsAreGoneAndMadeAnew) {
  if (is_uring()) GTEST_SKIP() << "it has none; the kernel's own go with the thread that submits";
  const auto threads = [] {
    std::set<std::string> names;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
      names.insert(task.path().filename());
    return names;
  };
  std::thread([] {}).join();  // a sanitizer starts a thread of its own with the first
  const auto before = threads();
  Blocks blocks(200);
  expect_round_trip(*engine_, blocks, 1, 0);
  engine_->retire_threads();
  for (const std::string& thread : threads()) EXPECT_TRUE(before.contains(thread)) << thread;
  expect_round_trip(*engine_, blocks, 2, 0);
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineContract,
                         ::testing::Combine(::testing::Values(EngineChoice::kPosix,
                                                              EngineChoice::kUring),
                                            ::testing::Values(Target::kFile, Target::kLoop)),
                         name_of);

TEST_P(EngineContract, NamesItself) {
  EXPECT_STREQ(engine_->name(), is_uring() ? "io_uring" : "posix");
  EXPECT_FALSE(engine_->detail().empty());
}

TEST_P(EngineContract, ABatchOfNothingIsNothing) {
  engine_->run(fd_.get(), {});
  EXPECT_EQ(counters_.submissions, 0U);
}

TEST_P(EngineContract, VectoredRequestsRoundTrip) {
  const Buffer memory = Buffer::from_heap(64 * kKiB);
  for (std::size_t i = 0; i < memory.capacity(); ++i) memory.data()[i] = std::byte(i / 512 % 251);
  const std::array<iovec, 3> scattered{{{memory.data() + 8 * kKiB, 4 * kKiB},
                                        {memory.data() + 32 * kKiB, 8 * kKiB},
                                        {memory.data() + 16 * kKiB, 12 * kKiB}}};
  const Buffer target = Buffer::from_heap(24 * kKiB);
  const std::array<iovec, 2> other_cut{
      {{target.data(), 16 * kKiB}, {target.data() + 16 * kKiB, 8 * kKiB}}};
  for (const std::size_t copies : {1U, 2U}) {  // alone, and in a batch
    std::vector<IoRequest> writes;
    std::vector<IoRequest> reads;
    for (std::size_t i = 0; i < copies; ++i) {
      writes.push_back({.op = IoOp::kWrite, .offset_bytes = i * kMiB, .segments = scattered});
      reads.push_back({.op = IoOp::kRead, .offset_bytes = i * kMiB, .segments = other_cut});
    }
    engine_->run(fd_.get(), writes);
    engine_->run(fd_.get(), {&reads.back(), 1});
    EXPECT_EQ(writes.back().error, 0);
    EXPECT_EQ(reads.back().error, 0);
    std::size_t done_bytes = 0;
    for (const iovec& piece : scattered) {
      EXPECT_EQ(std::memcmp(target.data() + done_bytes, piece.iov_base, piece.iov_len), 0);
      done_bytes += piece.iov_len;
    }
  }
}

TEST_P(EngineContract, TheLargestRequestRoundTrips) {
  const Buffer memory = Buffer::from_heap(kTransferSizeBytesMax);
  std::vector<iovec> segments(kSegmentsMax);
  for (std::size_t i = 0; i < kSegmentsMax; ++i) {
    segments[i] = {memory.data() + i * kBlockSizeBytes, kBlockSizeBytes};
    std::memset(segments[i].iov_base, static_cast<int>(i), kBlockSizeBytes);
  }
  const std::vector<std::byte> expected(memory.data(), memory.data() + memory.capacity());
  std::array<IoRequest, 2> requests;
  for (const IoOp op : {IoOp::kWrite, IoOp::kRead}) {
    requests[0] = {.op = op, .offset_bytes = 0, .segments = segments, .error = -1};
    requests[1] = {.op = op, .offset_bytes = 2 * kMiB, .segments = segments, .error = -1};
    engine_->run(fd_.get(),
                 op == IoOp::kWrite ? std::span(requests) : std::span(requests).first(1));
    EXPECT_EQ(requests[0].error, 0);
    if (op == IoOp::kWrite) std::memset(memory.data(), 0, memory.capacity());
  }
  EXPECT_TRUE(std::ranges::equal(memory.bytes(), expected));
}

TEST_P(EngineContract, BatchesOfAnySizeRoundTrip) {
  unsigned seed = 0;
  for (const std::size_t count : {1U, 2U, 3U, 100U, 256U, 257U, 1000U}) {
    Blocks blocks(count);
    expect_round_trip(*engine_, blocks, ++seed, 5, 3);
  }
  EXPECT_EQ(counters_.queue_depth, 0U);
  EXPECT_EQ(counters_.reads, counters_.writes);
  EXPECT_EQ(counters_.read_bytes, counters_.writes * kBlockSizeBytes);
}

TEST_P(EngineContract, ABatchLargerThanTheQueueKeepsToItsDepth) {
  const auto engine = make_engine(8);
  Blocks blocks(1000);
  expect_round_trip(*engine, blocks, 1, 0, 2);
  if (is_uring()) {
    EXPECT_EQ(counters_.queue_depth_max, 8U);
  }
}

TEST_P(EngineContract, ABatchThatFitsTheRingIsOneSubmissionToIt) {
  Blocks blocks(100);
  blocks.fill(1);
  engine_->run(fd_.get(), blocks.prepare(IoOp::kWrite, 0));
  EXPECT_EQ(counters_.submissions, is_uring() ? 1U : 100U);
  EXPECT_LE(counters_.queue_depth_max, is_uring() ? 100U : kPosixHelpersMax + 1);
  EXPECT_EQ(counters_.writes, 100U);
}

TEST_P(EngineContract, AFailureIsItsRequestsOwn) {
  Blocks blocks(10);
  for (const IoOp op : {IoOp::kWrite, IoOp::kRead}) {
    const std::span<IoRequest> requests = blocks.prepare(op, 0);
    if (op == IoOp::kRead) {
      requests[3].offset_bytes = kImageSizeBytes;  // reads past the end move nothing
      requests[7].offset_bytes = kImageSizeBytes + kMiB;
    }
    engine_->run(fd_.get(), requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const bool is_bad = op == IoOp::kRead && (i == 3 || i == 7);
      EXPECT_EQ(requests[i].error, is_bad ? EIO : 0) << i;
    }
  }
}

TEST_P(EngineContract, ABadDescriptorFailsEveryRequest) {
  for (const std::size_t count : {1U, 2U, 10U}) {
    Blocks blocks(count);
    const std::span<IoRequest> requests = blocks.prepare(IoOp::kRead, 0);
    engine_->run(-1, requests);
    for (const IoRequest& request : requests) EXPECT_EQ(request.error, EBADF);
  }
}

TEST_P(EngineContract, ReadsAndWritesShareABatch) {
  Blocks blocks(20);
  expect_round_trip(*engine_, blocks, 4, 0);
  const std::span<IoRequest> requests = blocks.prepare(IoOp::kRead, 0);
  for (std::size_t i = 0; i < requests.size(); i += 2) {
    requests[i].op = IoOp::kWrite;
    requests[i].offset_bytes += kMiB;
  }
  engine_->run(fd_.get(), requests);
  EXPECT_TRUE(blocks.all_succeeded());
  EXPECT_TRUE(blocks.holds(4));
}

TEST_P(EngineContract, ThreadsRunBatchesAtTheSameTime) {
  constexpr unsigned kThreads = 8;
  constexpr std::uint64_t kBlocksPerThread = 1024;
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread] {
      for (unsigned round = 0; round < 20; ++round) {
        Blocks blocks(1 + (round * 7 + thread) % 40);
        expect_round_trip(*engine_, blocks, thread * 100 + round, thread * kBlocksPerThread);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counters_.queue_depth, 0U);
}

TEST_P(EngineContract, AThreadMayEndBeforeTheEngine) {
  for (unsigned round = 0; round < 20; ++round) {
    std::thread([&] {
      Blocks blocks(10);
      expect_round_trip(*engine_, blocks, round, 0);
    }).join();
  }
  const auto* const uring = dynamic_cast<const UringEngine*>(engine_.get());
  if (uring != nullptr) {
    EXPECT_EQ(uring->ring_count(), 0U) << "rings outlive their threads";
  }
}

TEST_P(EngineContract, TheEngineMayEndBeforeAThread) {
  std::latch used(1);
  std::latch gone(1);
  std::thread thread([&] {
    Blocks blocks(10);
    expect_round_trip(*engine_, blocks, 1, 0);
    used.count_down();
    gone.wait();
    const auto next = make_engine();  // perhaps at the same address
    expect_round_trip(*next, blocks, 2, 0);
  });
  used.wait();
  engine_.reset();
  gone.count_down();
  thread.join();
}

TEST_P(EngineContract, EnginesComeAndGoWithoutLeavingDescriptors) {
  const auto open_descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  Blocks blocks(3);
  engine_->run(fd_.get(), blocks.prepare(IoOp::kRead, 0));
  const auto before = open_descriptors();
  for (int round = 0; round < 500; ++round) {
    const auto engine = make_engine(4);
    ASSERT_NE(engine, nullptr);
    engine->run(fd_.get(), blocks.prepare(IoOp::kRead, 0));
    ASSERT_TRUE(blocks.all_succeeded());
  }
  EXPECT_EQ(open_descriptors(), before);
}

// Interrupts this process every millisecond, without SA_RESTART.
class SignalStorm {
 public:
  SignalStorm() {
    struct sigaction action{};
    action.sa_handler = [](int) {};
    sigaction(SIGALRM, &action, &before_);
    const itimerval often{.it_interval = {0, 1000}, .it_value = {0, 1000}};
    setitimer(ITIMER_REAL, &often, nullptr);
  }
  ~SignalStorm() {
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }
  SignalStorm(const SignalStorm&) = delete;
  SignalStorm& operator=(const SignalStorm&) = delete;

 private:
  struct sigaction before_{};
};

TEST_P(EngineContract, SignalsDisturbNothing) {
  const SignalStorm storm;
  for (unsigned round = 0; round < 30; ++round) {
    Blocks single(1);
    expect_round_trip(*engine_, single, round, 0);
    Blocks batch(300);
    expect_round_trip(*engine_, batch, round, 0);
  }
  EXPECT_EQ(counters_.queue_depth, 0U);
}

TEST(IoEngineChoice, AutoAlwaysHasAnEngineAndSaysWhich) {
  IoCounters counters;
  const auto engine = make_io_engine({.choice = EngineChoice::kAuto}, counters);
  ASSERT_TRUE(engine);
  EXPECT_FALSE((*engine)->detail().empty());
}

TEST(IoEngineChoice, AnyQueueDepthIsBroughtWithinLimits) {
  for (const unsigned depth : {0U, 1U, 1'000'000U}) {
    IoCounters counters;
    EXPECT_TRUE(
        make_io_engine({.choice = EngineChoice::kAuto, .queue_depth_max = depth}, counters));
  }
}

}  // namespace
}  // namespace kvslot
