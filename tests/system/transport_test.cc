// FUSE over io_uring, where answers come from other threads than those that take the requests.
//
// KVSLOT_TRANSPORT_ROUNDS   of each of the 32 writers (60)
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/environment.h"
#include "tests/support/mount_test.h"
#include "tests/support/mounted_store.h"

namespace kvslot::testing {
namespace {

// Writes, makes durable and reads back files of its own until one of them is not what it wrote.
// Every answer is checked: its size, its bytes, and that it came at all.
void keep_files(const std::string& directory, int number, int rounds, std::atomic<int>& wrong) {
  for (int round = 0; round < rounds && wrong == 0; ++round) {
    const std::string path =
        directory + "/" + std::to_string(number) + "-" + std::to_string(round % 8);
    const std::size_t size_bytes = static_cast<std::size_t>(1 + (number * 131 + round * 17) % 9000);
    const std::string written(size_bytes, static_cast<char>('a' + (number + round) % 26));
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    std::string found(size_bytes + 1, '?');
    struct stat status{};
    const bool is_right =
        fd >= 0 &&
        ::pwrite(fd, written.data(), size_bytes, 0) == static_cast<ssize_t>(size_bytes) &&
        ::fsync(fd) == 0 && ::fstat(fd, &status) == 0 &&
        status.st_size == static_cast<off_t>(size_bytes) &&
        ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 &&
        ::pread(fd, found.data(), found.size(), 0) == static_cast<ssize_t>(size_bytes) &&
        found.compare(0, size_bytes, written) == 0;
    if (!is_right) ++wrong;
    if (fd >= 0 && ::close(fd) != 0) ++wrong;
  }
}

using Transport = MountTest;

TEST_F(Transport, EveryAnswerOverIoUringReachesItsOwnRequest) {
  if (const std::string why = why_no_uring_transport(); !why.empty()) GTEST_SKIP() << why;
  constexpr int kWriters = 32;
  const int rounds = static_cast<int>(number_from("KVSLOT_TRANSPORT_ROUNDS", 60));
  MountedStore store("256M", "transport=uring");
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> writers;
  for (int number = 0; number < kWriters; ++number)
    writers.emplace_back([&, number] { keep_files(store.root(), number, rounds, wrong); });
  writers.clear();
  EXPECT_EQ(wrong, 0);
  store.expect_sound();
}

}  // namespace
}  // namespace kvslot::testing
