// More writers than a mount has serving threads wait for a device that takes nothing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/control_files.h"
#include "tests/support/failing_file.h"
#include "tests/support/mount_guard.h"
#include "tests/support/mount_test.h"
#include "tests/support/patience.h"
#include "tests/support/proc_files.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::FileOperation;
using testing::run_kvslot;
using testing::stat_of;
using testing::text_of;

class HeldWritersTest : public testing::TransportTest {
 protected:
  static std::ptrdiff_t entries_of(const std::string& directory) {
    const std::filesystem::directory_iterator first(directory);
    return std::distance(begin(first), end(first));
  }
};

TEST_P(HeldWritersTest, TheyHoldUpNobodyElse) {
  constexpr int kWriters = 110;                  // over io_uring, fewer than a queue has entries
  constexpr std::size_t kSizeBytes = 256 << 10;  // 32 of them fit
  constexpr std::uint64_t kServingThreads = 64;
  const testing::TempDir directory;
  const std::string image = directory.path("store.img");
  testing::expect_ok(run_kvslot({"format", image, "--size", "48M"}));
  testing::FailingFile device(image, directory.path("device"));
  ASSERT_TRUE(device.is_mounted());
  const testing::MountGuard mount(directory.path("mnt"));
  testing::expect_ok(run_kvslot(
      {"mount", device.path(), mount.path(), "-o", "staging=8M,deadline=0," + transport()}));
  std::ofstream(mount.path("stored")) << "stored";
  testing::expect_ok(testing::run_shell("sync \"$1\"", {mount.path()}));

  device.hold(FileOperation::kWrite);
  std::vector<std::thread> writers;
  std::atomic<int> stored = 0;
  for (int i = 0; i < kWriters; ++i) {
    writers.emplace_back([&, path = mount.path(std::to_string(i))] {
      const std::string bytes(kSizeBytes, 'x');
      const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
      const bool is_written = ::write(fd, bytes.data(), bytes.size()) == std::ssize(bytes);
      if (::close(fd) == 0 && is_written) ++stored;
    });
  }
  testing::yield_until([&] {
    return stat_of(mount.path(), "writes_parked") > kServingThreads &&
           entries_of(mount.path()) == kWriters + 1;
  });

  struct stat status{};
  struct statfs space{};
  EXPECT_EQ(::stat(mount.path("stored").c_str(), &status), 0);
  EXPECT_EQ(::statfs(mount.path().c_str(), &space), 0);
  EXPECT_EQ(::mkdir(mount.path("dir").c_str(), 0755), 0);
  EXPECT_EQ(testing::run_shell("ls \"$1\" | wc -l", {mount.path()}).out,
            std::to_string(kWriters + 2) + "\n");
  EXPECT_EQ(text_of(mount.path("stored")), "stored");
  EXPECT_NE(text_of(mount.path(".kvslot/index")).find("stored"), std::string::npos);
  EXPECT_FALSE(text_of(mount.path(".kvslot/inflight")).empty());
  EXPECT_LE(stat_of(mount.path(), "staging_bytes"), 8U << 20);

  device.release();
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(stored, kWriters);
  testing::expect_ok(run_kvslot({"unmount", mount.path()}));
  EXPECT_EQ(run_kvslot({"fsck", device.path()}).exit_code, 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, HeldWritersTest, testing::kTransports,
                         testing::name_of_transport);

}  // namespace
}  // namespace kvslot
