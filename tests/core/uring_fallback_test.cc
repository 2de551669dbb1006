// What happens when the kernel refuses io_uring, at set-up or later. A system-call filter on one
// thread plays the kernel that refuses.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kvslot/buffer.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "core/io_engine.h"
#include "core/unique_fd.h"
#include "core/uring_ring.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

constexpr std::uint32_t kSetup = SYS_io_uring_setup;
constexpr std::uint32_t kEnter = SYS_io_uring_enter;

// Which system call fails, and with what. Calls whose second argument, the number of entries to
// submit, is outside the range are let through.
struct Refusal {
  std::uint32_t call;
  std::uint32_t error;
  std::uint32_t second_argument_min = 0;
  std::uint32_t second_argument_end = UINT32_MAX;
};

sock_filter load(std::size_t offset_bytes) {
  return {BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<std::uint32_t>(offset_bytes)};
}

// True when this thread's calls are refused from now on.
bool refuse_on_this_thread(const Refusal& refusal) {
  std::array<sock_filter, 7> program{{
      load(offsetof(seccomp_data, nr)),
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 4, refusal.call},
      load(offsetof(seccomp_data, args) + sizeof(std::uint64_t)),
      {BPF_JMP | BPF_JGE | BPF_K, 0, 2, refusal.second_argument_min},
      {BPF_JMP | BPF_JGE | BPF_K, 1, 0, refusal.second_argument_end},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | refusal.error},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

class UringFallback : public ::testing::Test {
 protected:
  static constexpr std::size_t kRequests = 100;

  void SetUp() override {
    const std::string image = directory_.make_image("image", kMiB);
    fd_.reset(::open(image.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT));
    if (!fd_) fd_.reset(::open(image.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(fd_);
    auto made = make_io_engine({.choice = EngineChoice::kUring, .queue_depth_max = 8}, counters_);
    if (!made) GTEST_SKIP() << made.error().step << ": " << strerror(made.error().os_errno);
    engine_ = std::move(*made);
  }

  // Runs body on a thread whose calls are refused.
  void run_refused(const Refusal& refusal, const std::function<void()>& body) {
    bool is_filtered = false;
    std::thread([&] {
      is_filtered = refuse_on_this_thread(refusal);
      if (is_filtered) body();
    }).join();
    if (!is_filtered) GTEST_SKIP() << "no system-call filters here";
  }
  // Writes a pattern in one batch, reads it in another.
  void expect_round_trip(int seed) {
    const Buffer memory = Buffer::from_heap(kRequests * kBlockSizeBytes);
    std::vector<iovec> segments(kRequests);
    std::vector<IoRequest> requests(kRequests);
    const auto prepare = [&](IoOp op) {
      for (std::size_t i = 0; i < kRequests; ++i) {
        segments[i] = {memory.data() + i * kBlockSizeBytes, kBlockSizeBytes};
        requests[i] = {.op = op,
                       .offset_bytes = i * kBlockSizeBytes,
                       .segments = {&segments[i], 1},
                       .error = -1};
      }
    };
    std::memset(memory.data(), seed, memory.capacity());
    for (const IoOp op : {IoOp::kWrite, IoOp::kRead}) {
      prepare(op);
      engine_->run(fd_.get(), requests);
      for (const IoRequest& request : requests) EXPECT_EQ(request.error, 0);
      if (op == IoOp::kWrite) std::memset(memory.data(), 0, memory.capacity());
    }
    const auto expected = static_cast<std::byte>(seed);
    EXPECT_TRUE(std::ranges::all_of(memory.bytes(), [&](std::byte b) { return b == expected; }));
    EXPECT_EQ(counters_.queue_depth, 0U);
  }

  testing::TempDir directory_;
  UniqueFd fd_;
  IoCounters counters_;
  std::unique_ptr<IoEngine> engine_;
};

TEST_F(UringFallback, AutoFallsBackToPosixAndKeepsTheReason) {
  run_refused({.call = kSetup, .error = EPERM}, [this] {
    const auto made = make_io_engine({.choice = EngineChoice::kAuto}, counters_);
    ASSERT_TRUE(made);
    EXPECT_STREQ((*made)->name(), "posix");
    EXPECT_NE((*made)->detail().find("Operation not permitted"), std::string::npos);
  });
}

TEST_F(UringFallback, AskedForByNameItFailsWithTheReason) {
  run_refused({.call = kSetup, .error = ENOSYS}, [this] {
    const auto made = make_io_engine({.choice = EngineChoice::kUring}, counters_);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, Errc::kInvalid);
    EXPECT_EQ(made.error().os_errno, ENOSYS);
  });
}

TEST_F(UringFallback, AThreadThatGetsNoRingDoesWithout) {
  run_refused({.call = kSetup, .error = ENOMEM}, [this] { expect_round_trip(1); });
  expect_round_trip(2);
}

TEST_F(UringFallback, ARingThatTakesNothingIsGivenUp) {
  for (const unsigned error : {EAGAIN, EBUSY, ENOMEM}) {
    run_refused({.call = kEnter, .error = error}, [this] {
      expect_round_trip(1);
      expect_round_trip(2);  // on the next ring
    });
  }
}

TEST_F(UringFallback, ARingGivenUpHalfWayIsDrainedFirst) {
  const Refusal refills{.call = kEnter,
                        .error = EAGAIN,
                        .second_argument_min = 1,   // 0 only waits
                        .second_argument_end = 8};  // 8 fill the empty ring
  run_refused(refills, [this] { expect_round_trip(1); });
  EXPECT_GE(counters_.retries, kRetriesMax);
}

TEST_F(UringFallback, FlagsTheKernelDoesNotKnowAreDropped) {
  constexpr unsigned kUnknown = 1U << 31;
  const auto ring = UringRing::open({.entries = 8, .flags = IORING_SETUP_CLAMP | kUnknown});
  ASSERT_TRUE(ring);
  EXPECT_EQ((*ring)->flags(), 0U);
  EXPECT_EQ(uring_flags_to_string((*ring)->flags()), "no flags");
  EXPECT_EQ(uring_flags_to_string(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_CLAMP),
            "SINGLE_ISSUER|CLAMP");
}

}  // namespace
}  // namespace kvslot
