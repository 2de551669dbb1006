// Devices that fail for real below a mount: images that are cut short or find no room, disks with
// sectors of 4096 bytes, and ends that come in the middle of everything. What was acknowledged is
// right, what failed said so.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/attached_image.h"
#include "tests/support/command.h"
#include "tests/support/control_files.h"
#include "tests/support/daemon_process.h"
#include "tests/support/mount_guard.h"
#include "tests/support/mount_test.h"
#include "tests/support/proc_files.h"
#include "tests/support/real_faults.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tree_content.h"

namespace kvslot::testing {
namespace {

// ---- Images

// The first values lie before the cut, the later ones behind it.
TEST_F(RealFaults, AnImageThatIsCutShortLosesOnlyWhatWasThere) {
  constexpr std::size_t kCutBytes = 30 * kMebibyte;
  format(image_, "48M");
  mount(image_);
  for (int i = 0; i < 20; ++i) put_durably("low" + std::to_string(i), kMebibyte);
  unmount();
  mount(image_);
  std::map<std::string, std::string> high;
  for (int i = 0; i < 12; ++i) {
    const std::string key = "high" + std::to_string(i);
    high[key] = value_of(key, kMebibyte);
    ASSERT_EQ(write_durably(mount_.path(key), high[key]), 0);
  }
  for (const auto& [key, value] : durable_) ASSERT_LE(end_on_device(key), kCutBytes) << key;
  const auto is_cut = [&](const auto& each) { return end_on_device(each.first) > kCutBytes; };
  const std::size_t cut_count = static_cast<std::size_t>(std::ranges::count_if(high, is_cut));
  ASSERT_GT(cut_count, 0U);
  forget_pages();
  ASSERT_EQ(::truncate(image_.c_str(), kCutBytes), 0);
  // What was cut off is an error, or gone; never other bytes.
  const auto expect_no_other_bytes = [&] {
    const TreeContent found = read_tree(mount_.path());
    for (const auto& [key, bytes] : found.files) {
      const auto& values = durable_.contains(key) ? durable_ : high;
      EXPECT_TRUE(values.contains(key) && bytes == values.at(key)) << key;
    }
    for (const auto& [key, value] : durable_) EXPECT_TRUE(found.files.contains(key)) << key;
    EXPECT_LE(found.files.size(), durable_.size() + high.size() - cut_count);
    return found.failures;
  };
  EXPECT_NE(expect_no_other_bytes(), "");
  kill();
  ASSERT_EQ(::truncate(image_.c_str(), 48 << 20), 0);
  mount(image_);
  expect_no_other_bytes();
  unmount();
}

TEST_F(RealFaults, AnImageOnAFullFileSystemTakesPutsAgainWhenThereIsRoom) {
  const std::string below = directory_.make_image("below.img", 40 * kMebibyte);
  if (run_command({"mkfs.ext4", "-q", "-F", "-m", "0", below}).exit_code != 0) {
    GTEST_SKIP() << "no mkfs.ext4; scripts/install_deps.sh --test installs it";
  }
  const MountGuard disk(directory_.path("disk"));
  if (run_command({"mount", "-o", "loop", below, disk.path()}).exit_code != 0) {
    GTEST_SKIP() << "no loop device to mount a file system on";
  }
  const std::string image = disk.path("store.img");
  format(image, "64M");
  const std::string ballast = disk.path("ballast");
  expect_ok(run_command({"fallocate", "-l", "12M", ballast}));
  mount(image);
  int error = 0;
  int count = 0;
  for (; count < 64 && error == 0; ++count) {
    const std::string key = "key" + std::to_string(count);
    error = write_durably(mount_.path(key), value_of(key, kMebibyte));
    if (error == 0) durable_[key] = value_of(key, kMebibyte);
  }
  EXPECT_EQ(error, ENOSPC);
  EXPECT_GT(durable_.size(), 4U);
  const std::string refused = "key" + std::to_string(count - 1);
  ASSERT_EQ(::unlink(mount_.path("key0").c_str()), 0);
  durable_.erase("key0");
  ASSERT_EQ(::unlink(ballast.c_str()), 0);
  expect_ok(run_command({"sync", "-f", disk.path()}));
  (void)write_durably(mount_.path(refused),
                      value_of(refused, kMebibyte));  // may tell of the last try still
  put_durably(refused, kMebibyte);
  put_durably("later", 2 * kMebibyte);
  expect_durable();
  unmount();
  expect_sound(image);
}

TEST_F(RealFaults, ALimitOfFileSizesIsSaidInOneLineAndKillsNobody) {
  format(image_, "64M");
  const CommandResult limited = run_shell("ulimit -f 1000; exec \"$1\" mount \"$2\" \"$3\"",
                                          {KVSLOT_BINARY, image_, mount_.path()});
  EXPECT_EQ(limited.exit_code, 1) << limited.err;
  EXPECT_EQ(std::ranges::count(limited.err, '\n'), 1) << limited.err;
  EXPECT_NE(limited.err.find("ulimit -f"), std::string::npos) << limited.err;
  mount(image_);  // nothing was harmed
  unmount();
  expect_sound(image_);
}

// ---- Disks with sectors of 4096 bytes

void expect_sectors_of_4096_bytes(const std::string& device) {
  EXPECT_EQ(run_command({"blockdev", "--getss", device}).out, "4096\n");
}

TEST_F(RealFaults, ALoopDeviceWith4096ByteSectorsHoldsAStore) {
  const std::string below = directory_.make_image("below.img", 64 * kMebibyte);
  const AttachedImage device(below, 4096);
  if (device.path().empty()) GTEST_SKIP() << "no loop device with such sectors here";
  expect_sectors_of_4096_bytes(device.path());
  format(device.path());
  expect_good_device(device.path());
}

// A disk of 64 MiB in compressed memory.
class ZramDisk {
 public:
  ZramDisk() {
    if (!(std::ifstream("/sys/class/zram-control/hot_add") >> number_)) return;
    std::ofstream(knob("disksize")) << "64M" << std::flush;
  }
  ~ZramDisk() {
    if (number_.empty()) return;
    std::ofstream(knob("reset")) << "1" << std::flush;
    std::ofstream("/sys/class/zram-control/hot_remove") << number_ << std::flush;
  }
  ZramDisk(const ZramDisk&) = delete;
  ZramDisk& operator=(const ZramDisk&) = delete;
  [[nodiscard]] std::string path() const { return "/dev/zram" + number_; }
  [[nodiscard]] bool exists() const {
    return !number_.empty() && std::filesystem::is_block_file(path());
  }

 private:
  [[nodiscard]] std::string knob(const std::string& name) const {
    return "/sys/block/zram" + number_ + "/" + name;
  }
  std::string number_;
};

TEST_F(RealFaults, AZramDiskHoldsAStore) {
  const ZramDisk disk;
  if (!disk.exists()) GTEST_SKIP() << "no zram here (/sys/class/zram-control)";
  expect_sectors_of_4096_bytes(disk.path());
  format(disk.path());
  expect_good_device(disk.path());
}

// ---- Ends

// Threads that open, write and close new files below a directory of a mount, until it is gone.
class OpenStorm {
 public:
  explicit OpenStorm(const std::string& root)
      : root_(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    for (int t = 0; t < 4; ++t) {
      threads_.emplace_back([this, t] {
        run(t);
        --running_count_;
      });
    }
    while (closed_count_ < 40 && running_count_ > 0) ::sched_yield();
    EXPECT_GE(closed_count_, 40);
  }
  ~OpenStorm() { join(); }
  OpenStorm(const OpenStorm&) = delete;
  OpenStorm& operator=(const OpenStorm&) = delete;

  // What was closed without an error.
  const std::vector<std::string>& join() {
    threads_.clear();
    if (root_ >= 0) ::close(std::exchange(root_, -1));
    if (all_.empty()) {
      for (const auto& names : closed_) all_.insert(all_.end(), names.begin(), names.end());
    }
    return all_;
  }

 private:
  void run(int thread) {
    for (int i = 0;; ++i) {
      const std::string name = "t" + std::to_string(thread) + "-" + std::to_string(i);
      const int fd = ::openat(root_, name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
      if (fd < 0) return;
      const bool is_written =
          ::write(fd, name.data(), name.size()) == static_cast<ssize_t>(name.size());
      if (::close(fd) != 0 || !is_written) return;
      closed_[static_cast<std::size_t>(thread)].push_back(name);
      ++closed_count_;
    }
  }

  int root_;
  std::atomic<int> closed_count_ = 0;
  std::atomic<int> running_count_ = 4;
  std::array<std::vector<std::string>, 4> closed_;
  std::vector<std::string> all_;
  std::vector<std::jthread> threads_;
};

class RealEnds : public OverTransports<RealFaults> {
 protected:
  void expect_there(const std::vector<std::string>& names) const {
    const TreeContent found = read_tree(mount_.path());
    EXPECT_EQ(found.failures, "");
    for (const std::string& name : names) {
      const auto at = found.files.find(name);
      ASSERT_NE(at, found.files.end()) << name;
      EXPECT_EQ(at->second, name);
    }
  }
};

TEST_P(RealEnds, SigtermInAStormOfOpensLosesNothingThatWasClosed) {
  format(image_, "64M");
  BackgroundCommand daemon({KVSLOT_BINARY, "mount", "-f", "--ready-fd", "1", image_, mount_.path(),
                            "-o", "deadline=3600," + transport()});
  ASSERT_EQ(daemon.read_line(), "R");
  OpenStorm storm(mount_.path());
  ASSERT_EQ(::kill(daemon.pid(), SIGTERM), 0);
  EXPECT_EQ(daemon.wait(), 0);
  const auto& names = storm.join();
  EXPECT_FALSE(is_mounted(mount_.path()));
  expect_sound(image_);
  mount(image_);
  expect_there(names);
  unmount();
}

TEST_P(RealEnds, AnAbortedConnectionEndsTheDaemonAndLosesNothingDurable) {
  format(image_, "64M");
  mount(image_, transport());
  put_durably("durable", kMebibyte);
  const DaemonProcess daemon(mount_.path());
  OpenStorm storm(mount_.path());
  (void)::umount2(mount_.path().c_str(), MNT_FORCE);  // aborts it; it may be busy still
  storm.join();
  daemon.wait_for_end();
  mount(image_);
  const TreeContent found = read_tree(mount_.path());
  EXPECT_EQ(found.failures, "");
  EXPECT_TRUE(found.files.at("durable") == durable_["durable"]);
  unmount();
  expect_sound(image_);
}

TEST_P(RealEnds, FewDescriptorsAreSaidAtTheStartAndSurvivedLater) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers look at memory through descriptors of their own";
#endif
  format(image_, "64M");
  const CommandResult refused = run_shell("ulimit -n 6; exec \"$1\" mount \"$2\" \"$3\" -o \"$4\"",
                                          {KVSLOT_BINARY, image_, mount_.path(), transport()});
  EXPECT_EQ(refused.exit_code, 1) << refused.err;
  EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
  EXPECT_FALSE(is_mounted(mount_.path()));
  mount(image_, transport());
  {
    const DaemonProcess daemon(mount_.path());
    expect_ok(run_command({"prlimit", "--pid", std::to_string(daemon.pid()), "--nofile=8:8"}));
    for (int i = 0; i < 20; ++i) put_durably("key" + std::to_string(i), 5000);
  }
  expect_durable();
  unmount();
  expect_sound(image_);
}

INSTANTIATE_TEST_SUITE_P(Transports, RealEnds, kTransports, name_of_transport);

}  // namespace
}  // namespace kvslot::testing
