#include <fcntl.h>
#include <gtest/gtest.h>
#include <kvslot/buffer.h>
#include <kvslot/device.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <latch>
#include <optional>
#include <thread>

#include "core/unique_fd.h"
#include "tests/support/loop_device.h"
#include "tests/support/mount_guard.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using Opened = Result<std::unique_ptr<Device>>;

constexpr FileDeviceOptions kAtOnce{.open_wait_ms = 0};
constexpr FileDeviceOptions kReader{.read_only = true, .open_wait_ms = 0};
// Where somebody had it open before: the kernel may let go of the lock a moment after the close.
constexpr FileDeviceOptions kPatient{.open_wait_ms = 60'000};  // never passes in a good run
constexpr FileDeviceOptions kPatientReader{.read_only = true, .open_wait_ms = 60'000};

void expect_code(const Opened& opened, Errc code) {
  ASSERT_FALSE(opened) << "opened, expected: " << to_string(code);
  EXPECT_EQ(opened.error().code, code) << opened.error().step << ", " << opened.error().os_errno;
}

class FileDeviceTest : public ::testing::Test {
 protected:
  FileDeviceTest() : image_(directory_.make_image("image", 16 * kMiB)) {
    segment_ = {memory_.data(), memory_.capacity()};
  }
  int run_one(Device& device, IoOp op, std::uint64_t offset_bytes) {
    IoRequest request{.op = op, .offset_bytes = offset_bytes, .segments = {&segment_, 1}};
    device.run({&request, 1});
    return request.error;
  }

  testing::TempDir directory_;
  const std::string image_;
  const Buffer memory_ = Buffer::from_heap(64 * kKiB);
  iovec segment_{};
};

// ---- What is refused ----

TEST_F(FileDeviceTest, WhatIsNotThereIsNotFound) {
  expect_code(open_file_device(directory_.path("missing"), kAtOnce), Errc::kNotFound);
  expect_code(open_file_device(image_ + "/below", kAtOnce), Errc::kNotFound);
  expect_code(open_file_device("", kAtOnce), Errc::kNotFound);
}

TEST_F(FileDeviceTest, WhatCannotHoldAStoreIsInvalid) {
  const std::string fifo = directory_.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string circle = directory_.path("circle");
  ASSERT_EQ(::symlink(circle.c_str(), circle.c_str()), 0);
  for (const std::string& path : {directory_.path(), fifo, circle, std::string("/dev/null")}) {
    SCOPED_TRACE(path);
    expect_code(open_file_device(path, kAtOnce), Errc::kInvalid);
    expect_code(open_file_device(path, kReader), Errc::kInvalid);
  }
}

TEST_F(FileDeviceTest, ATerminalIsInvalid) {
  const UniqueFd terminal(::posix_openpt(O_RDWR | O_NOCTTY));
  std::array<char, 64> name{};
  if (!terminal || ::grantpt(terminal.get()) != 0 || ::unlockpt(terminal.get()) != 0 ||
      ::ptsname_r(terminal.get(), name.data(), name.size()) != 0) {
    GTEST_SKIP() << "no pseudo-terminals here: " << strerror(errno);
  }
  expect_code(open_file_device(name.data(), kAtOnce), Errc::kInvalid);
}

// ---- One holder at a time ----

TEST_F(FileDeviceTest, ASecondOpenerFindsItBusy) {
  const Opened first = open_file_device(image_, kAtOnce);
  ASSERT_TRUE(first);
  const Opened second = open_file_device(image_, kAtOnce);
  expect_code(second, Errc::kBusy);
  EXPECT_EQ(to_errno(second.error()), EBUSY);
  expect_code(open_file_device(image_, kReader), Errc::kBusy);
}

TEST_F(FileDeviceTest, ReadersShareAnImageAndKeepWritersOut) {
  const Opened first = open_file_device(image_, kReader);
  const Opened second = open_file_device(image_, kReader);
  EXPECT_TRUE(first);
  EXPECT_TRUE(second);
  expect_code(open_file_device(image_, kAtOnce), Errc::kBusy);
}

TEST_F(FileDeviceTest, AWaitingOpenerGetsInWhenTheHolderLetsGo) {
  Opened holder = open_file_device(image_, kAtOnce);
  ASSERT_TRUE(holder);
  std::latch begun(1);
  std::thread waiter([&] {
    begun.count_down();
    const Opened opened = open_file_device(image_, kPatient);
    EXPECT_TRUE(opened);
  });
  begun.wait();
  holder->reset();
  waiter.join();
}

TEST_F(FileDeviceTest, AKilledHolderLetsGo) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const UniqueFd reading(pipe[0]);
  UniqueFd writing(pipe[1]);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Opened held = open_file_device(image_, {.engine = EngineChoice::kPosix});
    const char answer = held ? 'y' : 'n';
    if (::write(pipe[1], &answer, 1) == 1) ::pause();
    ::_exit(1);
  }
  writing.reset();
  char answer = 0;
  EXPECT_EQ(::read(reading.get(), &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  expect_code(open_file_device(image_, kAtOnce), Errc::kBusy);
  ::kill(child, SIGKILL);
  EXPECT_TRUE(open_file_device(image_, kPatient));
  ::waitpid(child, nullptr, 0);
}

TEST_F(FileDeviceTest, OpenAndCloseLeaveNothingBehind) {
  const auto open_descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto before = open_descriptors();
  for (int round = 0; round < 500; ++round) {
    const Opened opened = open_file_device(image_, kPatient);
    ASSERT_TRUE(opened) << opened.error().step;
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(FileDeviceTest, DescriptorsAreNotInherited) {
  const auto count_inherited = [] {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      const int flags = ::fcntl(std::stoi(entry.path().filename()), F_GETFD);
      if (flags >= 0 && (flags & FD_CLOEXEC) == 0) ++count;
    }
    return count;
  };
  const std::size_t before = count_inherited();
  const Opened opened = open_file_device(image_, kAtOnce);
  ASSERT_TRUE(opened);
  EXPECT_EQ(run_one(**opened, IoOp::kWrite, 0), 0);
  EXPECT_EQ(count_inherited(), before);
}

// ---- Geometry and transfers ----

TEST_F(FileDeviceTest, DescribesAnImage) {
  const Opened opened = open_file_device(image_, kAtOnce);
  ASSERT_TRUE(opened);
  const DeviceInfo& info = (*opened)->info();
  EXPECT_EQ(info.name, image_);
  EXPECT_EQ(info.size_bytes, 16 * kMiB);
  EXPECT_FALSE(info.is_block_device);
  EXPECT_GE(info.logical_block_size_bytes, 512U);
  EXPECT_LE(info.logical_block_size_bytes, kBlockSizeBytes);
  EXPECT_TRUE(info.engine == "io_uring" || info.engine == "posix");
  EXPECT_FALSE(info.engine_detail.empty());
}

TEST_F(FileDeviceTest, WorksWithThePageCacheToo) {
  FileDeviceOptions options = kAtOnce;
  options.direct = false;
  const Opened opened = open_file_device(image_, options);
  ASSERT_TRUE(opened);
  EXPECT_FALSE((*opened)->info().is_direct);
  EXPECT_EQ(run_one(**opened, IoOp::kWrite, 0), 0);
  EXPECT_EQ(run_one(**opened, IoOp::kRead, 0), 0);
  EXPECT_TRUE((*opened)->flush());
}

TEST_F(FileDeviceTest, WorksOnAFileSystemInMemory) {
  struct stat status{};
  if (::stat("/dev/shm", &status) != 0) GTEST_SKIP() << "no /dev/shm here";
  std::string path = "/dev/shm/kvslot_test_XXXXXX";
  const UniqueFd file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file) GTEST_SKIP() << "cannot write to /dev/shm: " << strerror(errno);
  ASSERT_EQ(::ftruncate(file.get(), 1 << 20), 0);
  {
    const Opened opened = open_file_device(path, kAtOnce);
    ::unlink(path.c_str());
    ASSERT_TRUE(opened);
    EXPECT_EQ(run_one(**opened, IoOp::kWrite, 0), 0);
    EXPECT_EQ(run_one(**opened, IoOp::kRead, 0), 0);
  }
}

TEST_F(FileDeviceTest, TransfersPastTheEndFailAloneAndTheImageDoesNotGrow) {
  const Opened opened = open_file_device(image_, kAtOnce);
  ASSERT_TRUE(opened);
  std::array<IoRequest, 3> requests;
  requests.fill({.op = IoOp::kWrite, .offset_bytes = 0, .segments = {&segment_, 1}});
  requests[1].offset_bytes = 16 * kMiB - kBlockSizeBytes;  // 64 KiB, of which 4 fit
  requests[2].offset_bytes = std::uint64_t{1} << 60;
  (*opened)->run(requests);
  EXPECT_EQ(requests[0].error, 0);
  EXPECT_EQ(requests[1].error, EIO);
  EXPECT_EQ(requests[2].error, EIO);
  EXPECT_EQ(std::filesystem::file_size(image_), 16 * kMiB);
}

TEST_F(FileDeviceTest, DiscardGivesSpaceBackAndReadsZeros) {
  const Opened opened = open_file_device(image_, kAtOnce);
  ASSERT_TRUE(opened);
  std::memset(memory_.data(), 7, memory_.capacity());
  ASSERT_EQ(run_one(**opened, IoOp::kWrite, kMiB), 0);
  ASSERT_TRUE((*opened)->flush());
  (*opened)->discard(kMiB, memory_.capacity());
  ASSERT_EQ(run_one(**opened, IoOp::kRead, kMiB), 0);
  EXPECT_TRUE(std::ranges::all_of(memory_.bytes(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(std::filesystem::file_size(image_), 16 * kMiB);
}

TEST_F(FileDeviceTest, AReaderCannotWriteOrDiscard) {
  {
    const Opened writer = open_file_device(image_, kAtOnce);
    ASSERT_TRUE(writer);
    std::memset(memory_.data(), 7, memory_.capacity());
    ASSERT_EQ(run_one(**writer, IoOp::kWrite, 0), 0);
  }
  const Opened reader = open_file_device(image_, kPatientReader);
  ASSERT_TRUE(reader);
  EXPECT_EQ(run_one(**reader, IoOp::kWrite, 0), EBADF);
  (*reader)->discard(0, kMiB);
  ASSERT_EQ(run_one(**reader, IoOp::kRead, 0), 0);
  EXPECT_EQ(memory_.data()[0], std::byte{7});
}

TEST_F(FileDeviceTest, CountsWhatItDoes) {
  const Opened opened = open_file_device(image_, kAtOnce);
  ASSERT_TRUE(opened);
  EXPECT_EQ(run_one(**opened, IoOp::kWrite, 0), 0);
  EXPECT_EQ(run_one(**opened, IoOp::kRead, 0), 0);
  EXPECT_TRUE((*opened)->flush());
  const DeviceCounters counters = (*opened)->counters();
  EXPECT_EQ(counters.batches, 2U);
  EXPECT_EQ(counters.submissions, 2U);
  EXPECT_EQ(counters.reads, 1U);
  EXPECT_EQ(counters.writes, 1U);
  EXPECT_EQ(counters.written_bytes, 64 * kKiB);
  EXPECT_EQ(counters.flushes, 1U);
  EXPECT_EQ(counters.queue_depth, 0U);
  EXPECT_EQ(counters.queue_depth_max, 1U);
}

// ---- Block devices ----

class BlockDeviceTest : public FileDeviceTest {
 protected:
  void SetUp() override {
    auto attached = testing::LoopDevice::attach(image_);
    if (!attached) {
      GTEST_SKIP() << attached.error().step << ": " << strerror(attached.error().os_errno);
    }
    loop_.emplace(std::move(*attached));
  }
  std::optional<testing::LoopDevice> loop_;
};

TEST_F(BlockDeviceTest, DescribesADevice) {
  const Opened opened = open_file_device(loop_->path(), kPatient);
  ASSERT_TRUE(opened);
  const DeviceInfo& info = (*opened)->info();
  EXPECT_TRUE(info.is_block_device);
  EXPECT_TRUE(info.is_direct);
  EXPECT_EQ(info.size_bytes, 16 * kMiB);
  EXPECT_EQ(info.logical_block_size_bytes, 512U);
}

TEST_F(BlockDeviceTest, TransfersFlushesAndDiscards) {
  const Opened opened = open_file_device(loop_->path(), kPatient);
  ASSERT_TRUE(opened);
  std::memset(memory_.data(), 9, memory_.capacity());
  EXPECT_EQ(run_one(**opened, IoOp::kWrite, 0), 0);
  EXPECT_TRUE((*opened)->flush());
  (*opened)->discard(0, memory_.capacity());
  EXPECT_EQ(run_one(**opened, IoOp::kRead, 0), 0);
  EXPECT_EQ(memory_.data()[0], std::byte{0});
  EXPECT_EQ(run_one(**opened, IoOp::kWrite, 16 * kMiB), EIO);
}

TEST_F(BlockDeviceTest, ASecondOpenerFindsItBusy) {
  const Opened first = open_file_device(loop_->path(), kPatient);
  ASSERT_TRUE(first);
  expect_code(open_file_device(loop_->path(), kAtOnce), Errc::kBusy);
  expect_code(open_file_device(loop_->path(), kReader), Errc::kBusy);
}

TEST_F(BlockDeviceTest, AnImageAndTheLoopDeviceThatShowsItAreOneThing) {
  expect_code(open_file_device(image_, kAtOnce), Errc::kBusy);  // attached, though not open
  const Opened device = open_file_device(loop_->path(), kPatient);
  ASSERT_TRUE(device);
  const testing::LoopDevice second = testing::LoopDevice::attach(image_).value();
  expect_code(open_file_device(second.path(), kAtOnce), Errc::kBusy);
}

// Detaching a loop device leaves its protection to whatever is attached to it next.
class WriteProtection {
 public:
  explicit WriteProtection(const std::string& path)
      : device_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), is_on_(set(1)) {}
  ~WriteProtection() { set(0); }
  WriteProtection(const WriteProtection&) = delete;
  WriteProtection& operator=(const WriteProtection&) = delete;
  [[nodiscard]] bool is_on() const { return is_on_; }

 private:
  bool set(int value) { return ::ioctl(device_.get(), BLKROSET, &value) == 0; }
  const UniqueFd device_;
  const bool is_on_;
};

TEST_F(BlockDeviceTest, AWriteProtectedDeviceIsOpenedForReadingOnly) {
  const WriteProtection protection(loop_->path());
  ASSERT_TRUE(protection.is_on()) << strerror(errno);
  expect_code(open_file_device(loop_->path(), kPatient), Errc::kReadOnly);
  EXPECT_TRUE(open_file_device(loop_->path(), kPatientReader));
}

TEST_F(BlockDeviceTest, ADeviceWhoseFileIsOpenIsBusy) {
  loop_.reset();
  const Opened image = open_file_device(image_, kPatient);
  ASSERT_TRUE(image);
  loop_.emplace(testing::LoopDevice::attach(image_).value());
  expect_code(open_file_device(loop_->path(), kAtOnce), Errc::kBusy);
}

TEST_F(BlockDeviceTest, AMountedDeviceIsBusy) {
  const std::string make = "mkfs.ext4 -q -F " + loop_->path() + " >/dev/null 2>&1";
  if (std::system(make.c_str()) != 0) GTEST_SKIP() << "mkfs.ext4 is not to be had";
  const testing::MountGuard place(directory_.path("mnt"));
  if (::mount(loop_->path().c_str(), place.path().c_str(), "ext4", 0, nullptr) != 0) {
    GTEST_SKIP() << "cannot mount: " << strerror(errno);
  }
  expect_code(open_file_device(loop_->path(), kAtOnce), Errc::kBusy);
  expect_code(open_file_device(loop_->path(), kReader), Errc::kBusy);
  ASSERT_EQ(::umount(place.path().c_str()), 0);
  EXPECT_TRUE(open_file_device(loop_->path(), kPatient));
}

}  // namespace
}  // namespace kvslot
