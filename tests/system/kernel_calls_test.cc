// The kernel calls back into the mount while it serves another call: page faults in the source of a
// write, mapped pages written back for lack of memory, a store whose image lies in another store.
// None of it may wait for itself. Over both transports; a watchdog aborts a mount that hangs.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/descriptor.h"
#include "tests/support/dropped_caches.h"
#include "tests/support/engine.h"
#include "tests/support/mounted_store.h"
#include "tests/support/patience.h"
#include "tests/support/watchdog.h"

namespace kvslot::testing {
namespace {

class Mapping {
 public:
  Mapping(int fd, std::size_t size, int kind)
      : data_(static_cast<char*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, kind, fd, 0))),
        size_(size) {
    EXPECT_NE(static_cast<void*>(data_), MAP_FAILED) << std::strerror(errno);
  }
  ~Mapping() { EXPECT_EQ(::munmap(data_, size_), 0); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] char* data() const { return data_; }
  [[nodiscard]] std::string_view bytes() const { return {data_, size_}; }

 private:
  char* data_;
  std::size_t size_;
};

constexpr std::size_t kSize = 1 << 20;

class KernelCalls : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_mount(); !why.empty()) GTEST_SKIP() << why;
    store_ = std::make_unique<MountedStore>("256M", GetParam());
    watchdog_ = std::make_unique<Watchdog>(store_->root());
    ASSERT_FALSE(HasFailure());
  }
  void TearDown() override {
    watchdog_.reset();
    if (store_ != nullptr) store_->expect_sound();
    store_.reset();
  }
  [[nodiscard]] std::string path(const std::string& name) const { return store_->path(name); }
  // A durable file of which the kernel has no page.
  void make_cold(const std::string& name, std::string_view bytes) const {
    const Descriptor file(path(name), O_RDWR | O_CREAT | O_TRUNC);
    file.write_at(0, bytes);
    file.forget_pages();
  }

  std::unique_ptr<MountedStore> store_;
  std::unique_ptr<Watchdog> watchdog_;
};

TEST_P(KernelCalls, ASharedMappingOutlivesItsDescriptorAndIsStored) {
  const std::string value = value_of(1, kSize);
  {
    Descriptor file(path("mapped"), O_RDWR | O_CREAT);
    ASSERT_EQ(::ftruncate(file, kSize), 0);
    const Mapping mapping(file, kSize, MAP_SHARED);
    std::memcpy(mapping.data(), value.data(), kSize / 2);
    ASSERT_EQ(::msync(mapping.data(), kSize, MS_SYNC), 0);
    EXPECT_EQ(file.close(), 0);
    std::memcpy(mapping.data() + kSize / 2, value.data() + kSize / 2, kSize / 2);
  }
  EXPECT_EQ(store_->content("mapped"), value);
  watchdog_.reset();
  store_->remount();
  EXPECT_EQ(store_->content("mapped"), value);
}

TEST_P(KernelCalls, APrivateMappingChangesNothing) {
  const std::string value = value_of(1, kSize);
  make_cold("private", value);
  {
    const Descriptor file(path("private"), O_RDWR);
    const Mapping mapping(file, kSize, MAP_PRIVATE);
    std::memset(mapping.data(), 'x', kSize / 2);
    EXPECT_EQ(mapping.bytes().substr(kSize / 2), std::string_view(value).substr(kSize / 2));
  }
  EXPECT_EQ(store_->content("private"), value);
}

TEST_P(KernelCalls, AWriteFaultsInItsSourceFromTheSameMount) {
  const std::string value = value_of(2, kSize);
  make_cold("source", value);
  const Descriptor source(path("source"), O_RDWR);
  const Mapping mapping(source, kSize, MAP_SHARED);
  {
    const Descriptor copy(path("copy"), O_RDWR | O_CREAT);
    copy.write_at(0, mapping.bytes());
  }
  EXPECT_EQ(store_->content("copy"), value);
  source.forget_pages();
  EXPECT_EQ(::pwrite(source, mapping.data(), kSize, kSize), static_cast<ssize_t>(kSize))
      << "a file written from its own mapping";
  EXPECT_EQ(store_->content("source"), value + value);
}

TEST_P(KernelCalls, DirectTransfersUseMappedPagesOfTheSameMount) {
  const std::string value = value_of(3, kSize);
  make_cold("buffer", value);
  const Descriptor buffer(path("buffer"), O_RDWR);
  const Mapping mapping(buffer, kSize, MAP_SHARED);
  const Descriptor direct(path("direct"), O_RDWR | O_CREAT | O_DIRECT);
  direct.write_at(0, mapping.bytes());
  const std::string other = value_of(4, kSize);
  make_cold("other", other);
  const Descriptor source(path("other"), O_RDWR | O_DIRECT);
  EXPECT_EQ(::pread(source, mapping.data(), kSize, 0), static_cast<ssize_t>(kSize));
  EXPECT_EQ(::msync(mapping.data(), kSize, MS_SYNC), 0);
  EXPECT_EQ(store_->content("direct"), value);
  EXPECT_EQ(store_->content("buffer"), other);
}

TEST_P(KernelCalls, AProgramRunsOutOfTheMount) {
  store_->shell("cp /bin/sh $M/program && sync $M && echo 1 >$M/.kvslot/checkpoint");
  watchdog_.reset();
  store_->remount();
  EXPECT_EQ(store_->shell("$M/program -c 'echo runs'"), "runs\n");
}

TEST_P(KernelCalls, CachesAreDroppedAndTheFileSystemSyncedUnderLoad) {
  constexpr int kThreads = 4;
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  std::atomic<int> running = kThreads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 30 && wrong == 0; ++round) {
        const std::string name = std::to_string(t) + "-" + std::to_string(round % 3);
        const std::string value = value_of(static_cast<std::uint64_t>(t * 1000 + round), 70000);
        const int fd = ::open(path(name).c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        std::string found(value.size(), '\0');
        const auto size = static_cast<ssize_t>(value.size());
        if (::pwrite(fd, value.data(), value.size(), 0) != size) ++wrong;
        if (round % 4 == 0 && ::fsync(fd) != 0) ++wrong;
        if (::close(fd) != 0) ++wrong;
        const int again = ::open(path(name).c_str(), O_RDONLY | O_CLOEXEC);
        if (::pread(again, found.data(), found.size(), 0) != size || found != value) ++wrong;
        ::close(again);
      }
      --running;
    });
  }
  const Descriptor root(store_->root(), O_RDONLY | O_DIRECTORY);
  for (int drops = 0; running > 0; ++drops) {
    EXPECT_EQ(::syncfs(root), 0);
    EXPECT_EQ(::fsync(root), 0);
    if (drops < 3) {
      EXPECT_TRUE(drop_caches_of(store_->root()));
    }
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(::ioctl(root, FIFREEZE, 0), -1) << "a FUSE file system cannot be frozen";
  EXPECT_EQ(errno, EOPNOTSUPP);
}

// A group of processes that may use little memory, where the machine has such groups.
class MemoryGroup {
 public:
  explicit MemoryGroup(std::size_t limit_bytes) {
    const std::string name = "kvslot-test-" + std::to_string(::getpid());
    const std::string limit = std::to_string(limit_bytes);
    if (make("/sys/fs/cgroup/memory/" + name, "memory.limit_in_bytes", limit)) return;
    if (make("/sys/fs/cgroup/" + name, "memory.max", limit)) return;
    directory_.clear();
  }
  ~MemoryGroup() {
    if (!directory_.empty()) ::rmdir(directory_.c_str());
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;
  [[nodiscard]] bool exists() const { return !directory_.empty(); }
  [[nodiscard]] std::string entry() const { return directory_ + "/cgroup.procs"; }

 private:
  bool make(const std::string& directory, const std::string& knob, const std::string& limit) {
    if (::mkdir(directory.c_str(), 0700) != 0) return false;
    std::ofstream file(directory + "/" + knob);
    directory_ = directory;
    if (file << limit << std::flush) return true;
    ::rmdir(directory.c_str());
    return false;
  }
  std::string directory_;
};

TEST_P(KernelCalls, MappedPagesAreWrittenBackForLackOfMemory) {
  constexpr std::size_t kMapped = 48 << 20;
  const MemoryGroup group(24 << 20);
  if (!group.exists()) GTEST_SKIP() << "no control groups for memory here";
  const std::string file_path = path("pressed");
  const std::string entry = group.entry();
  const pid_t pid = ::fork();
  if (pid == 0) {  // system calls only: other threads exist
    const int group_fd = ::open(entry.c_str(), O_WRONLY | O_CLOEXEC);
    if (group_fd < 0 || ::write(group_fd, "0", 1) != 1) ::_exit(2);
    const int fd = ::open(file_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, kMapped) != 0) ::_exit(3);
    void* const data = ::mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) ::_exit(4);
    auto* const words = static_cast<std::uint64_t*>(data);
    for (std::size_t i = 0; i < kMapped / sizeof *words; ++i) words[i] = i * 0x9E3779B97F4A7C15;
    ::_exit(::msync(data, kMapped, MS_SYNC) == 0 ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
    GTEST_SKIP() << "this kernel rather ends a process than waits for its pages";
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  ASSERT_EQ(WEXITSTATUS(status), 0);
  const std::string found = store_->content("pressed");
  ASSERT_EQ(found.size(), kMapped);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < kMapped / sizeof(std::uint64_t); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, found.data() + i * sizeof word, sizeof word);
    if (word != i * 0x9E3779B97F4A7C15) ++wrong;
  }
  EXPECT_EQ(wrong, 0U);
}

TEST_P(KernelCalls, AStoreLivesInAStore) {
  MountedStore inner("32M", GetParam(), path("inner.img"));
  const Watchdog watchdog(inner.root());
  const std::string value = value_of(5, 3 * kSize);
  {
    const Descriptor file(inner.path("file"), O_RDWR | O_CREAT);
    file.write_at(0, value);
    file.forget_pages();
    const Mapping mapping(file, value.size(), MAP_SHARED);
    EXPECT_EQ(mapping.bytes(), value);
    const Descriptor copy(path("copy"), O_RDWR | O_CREAT);  // from the inner store to the outer one
    copy.write_at(0, mapping.bytes());
  }
  EXPECT_EQ(store_->content("copy"), value);
  inner.expect_sound();
}

// Stops the daemon of a mount; it goes on in any case.
class StoppedDaemon {
 public:
  explicit StoppedDaemon(const MountedStore& store) : daemon_(store.root()) { daemon_.stop(); }
  ~StoppedDaemon() { go_on(); }
  StoppedDaemon(const StoppedDaemon&) = delete;
  StoppedDaemon& operator=(const StoppedDaemon&) = delete;
  void go_on() const { daemon_.signal(SIGCONT); }

 private:
  const DaemonProcess daemon_;
};

TEST_P(KernelCalls, AProcessKilledInAnFsyncLeavesNothingBehind) {
  MountedStore inner("32M", GetParam(), path("inner.img"));
  const Watchdog watchdog(inner.root());
  {
    const Descriptor before(inner.path("before"), O_RDWR | O_CREAT);
    before.write_at(0, "before");
    EXPECT_EQ(::fsync(before), 0);
  }
  const StoppedDaemon device(*store_);
  const std::string file_path = inner.path("killed");
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int fd = ::open(file_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::write(fd, "bytes", 5) != 5) ::_exit(1);
    ::_exit(::fsync(fd) == 0 ? 0 : 2);
  }
  // Until the device has its bytes, or the watchdog has ended the mount.
  yield_until([&] { return inner.stat("puts_inflight") != 0; });
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  EXPECT_GT(inner.stat("nodes"), 0U) << "others are served meanwhile";
  device.go_on();
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status));
  const Descriptor root(inner.root(), O_RDONLY | O_DIRECTORY);
  EXPECT_EQ(::fsync(root), 0);
  std::string found(6, '\0');
  const Descriptor killed(file_path, O_RDONLY);
  EXPECT_EQ(::pread(killed, found.data(), found.size(), 0), 5);
  EXPECT_EQ(::unlink(file_path.c_str()), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Transports, KernelCalls, ::testing::Values("transport=dev", "transport=auto"),
    [](const auto& tested) {
      return std::string(tested.param).substr(std::string("transport=").size());
    });

}  // namespace
}  // namespace kvslot::testing
