// What is answered on a synchronous descriptor, or on a mount with -o sync, survives the daemon and
// was flushed: writes, copies, reservations.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/mount_test.h"
#include "tests/support/mounted_store.h"

namespace kvslot {
namespace {

using testing::MountedStore;

constexpr std::size_t kSizeBytes = 8192;
constexpr off_t kPunchedBytes = 5000;

// What a program does with a descriptor; its errno or 0.
struct Change {
  const char* name;
  int flags;  // of open
  std::function<int(int fd, int source)> change;
  std::string content;  // afterwards; before, the file is kSizeBytes of 'o'
};

int done_if(bool is_done) { return is_done ? 0 : errno != 0 ? errno : EIO; }

// A whole page, as O_DIRECT wants it.
std::byte* page_of(char byte) {
  alignas(4096) static std::byte page[kSizeBytes];
  std::fill(std::begin(page), std::end(page), static_cast<std::byte>(byte));
  return page;
}

int write_with(int fd, int flags) {
  const iovec piece{.iov_base = page_of('w'), .iov_len = kSizeBytes};
  return done_if(::pwritev2(fd, &piece, 1, 0, flags) == static_cast<ssize_t>(kSizeBytes));
}

std::string with_zeros(std::size_t begin, std::size_t end) {
  std::string text(kSizeBytes, 'o');
  return text.replace(begin, end - begin, end - begin, '\0');
}

std::vector<Change> changes() {
  const std::string written(kSizeBytes, 'w');
  const auto write_plainly = [](int fd, int) { return write_with(fd, 0); };
  const auto copy = [](int fd, int source) {
    return done_if(::copy_file_range(source, nullptr, fd, nullptr, kSizeBytes, 0) ==
                   static_cast<ssize_t>(kSizeBytes));
  };
  const auto allocate = [](int mode, off_t offset, off_t length) {
    return [=](int fd, int) { return done_if(::fallocate(fd, mode, offset, length) == 0); };
  };
  const std::string source(kSizeBytes, 's');
  return {
      {"write", O_DSYNC, write_plainly, written},
      {"write-sync", O_SYNC, write_plainly, written},
      {"direct", O_DSYNC | O_DIRECT, write_plainly, written},
      {"direct-later", O_DSYNC,
       [](int fd, int) { return ::fcntl(fd, F_SETFL, O_DIRECT) != 0 ? errno : write_with(fd, 0); },
       written},
      {"one-write", 0, [](int fd, int) { return write_with(fd, RWF_DSYNC); }, written},
      {"one-direct-write", O_DIRECT, [](int fd, int) { return write_with(fd, RWF_DSYNC); },
       written},
      {"copy", O_DSYNC, copy, source},
      {"copy-sync", O_SYNC, copy, source},
      {"extend", O_DSYNC, allocate(0, kSizeBytes, 100),
       std::string(kSizeBytes, 'o') + std::string(100, '\0')},
      {"punch", O_SYNC,
       allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100, kPunchedBytes - 100),
       with_zeros(100, kPunchedBytes)},
      {"zero", O_DSYNC, allocate(FALLOC_FL_ZERO_RANGE, 0, kPunchedBytes),
       with_zeros(0, kPunchedBytes)},
  };
}

class SynchronousTest : public testing::TransportTest {
 protected:
  // Nothing is flushed but what somebody waits for.
  static std::string options() { return "commit=3600," + transport(); }

  static void put(const std::string& path, char byte) {
    std::ofstream(path) << std::string(kSizeBytes, byte);
  }
};

TEST_P(SynchronousTest, WhatIsAnsweredIsDurable) {
  MountedStore store("16M", options());
  put(store.path("source"), 's');
  for (const Change& change : changes()) put(store.path(change.name), 'o');
  store.shell("sync $M");
  const int source = ::open(store.path("source").c_str(), O_RDONLY | O_CLOEXEC);
  std::vector<int> fds;
  for (const Change& change : changes()) {
    const int fd = fds.emplace_back(
        ::open(store.path(change.name).c_str(), O_RDWR | O_CLOEXEC | change.flags));
    ASSERT_GE(fd, 0) << change.name;
    EXPECT_EQ(::lseek(source, 0, SEEK_SET), 0);
    const std::uint64_t before = store.stat("flushes");
    EXPECT_EQ(change.change(fd, source), 0) << change.name;
    EXPECT_GT(store.stat("flushes"), before) << change.name;
  }
  store.kill_and_remount();
  for (const int fd : fds) ::close(fd);  // not before: a close commits as well
  ::close(source);
  for (const Change& change : changes()) {
    EXPECT_TRUE(store.content(change.name) == change.content) << change.name;
  }
  store.expect_sound();
}

// A reservation may change the size, and sizes are durable there before they are answered.
TEST_P(SynchronousTest, ASynchronousMountMakesReservationsDurable) {
  MountedStore store("16M", options() + ",sync");
  put(store.path("file"), 'o');
  const int fd = ::open(store.path("file").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const std::uint64_t before = store.stat("flushes");
  EXPECT_EQ(::fallocate(fd, 0, 0, kSizeBytes + 1), 0);
  EXPECT_GT(store.stat("flushes"), before);
  store.kill_and_remount();
  ::close(fd);
  EXPECT_EQ(store.content("file").size(), kSizeBytes + 1);
  store.expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Transports, SynchronousTest, testing::kTransports,
                         testing::name_of_transport);

}  // namespace
}  // namespace kvslot
