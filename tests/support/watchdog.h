// Lets go of whoever hangs in a mount of a test, so that the test run goes on.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

#include "tests/support/patience.h"

namespace kvslot::testing {

// Aborts the mount's connection, and fails the test, where it takes far longer than any machine
// needs.
class Watchdog {
 public:
  explicit Watchdog(const std::string& mount_point) {
    thread_ = std::jthread([this, abort_file = abort_file_of(mount_point)] { watch(abort_file); });
  }
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    over_.notify_all();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  // None where nothing is mounted there: the device is then a disk's.
  static std::string abort_file_of(const std::string& mount_point) {
    struct stat status{};
    struct stat parent{};
    EXPECT_EQ(::stat(mount_point.c_str(), &status), 0);
    EXPECT_EQ(::stat((mount_point + "/..").c_str(), &parent), 0);
    if (status.st_dev == parent.st_dev) return {};
    // A connection is named by the kernel's own form of the device's number.
    const auto device = (std::uint64_t{major(status.st_dev)} << 20) | minor(status.st_dev);
    return "/sys/fs/fuse/connections/" + std::to_string(device) + "/abort";
  }
  void watch(const std::string& abort_file) {
    std::unique_lock lock(mutex_);
    if (over_.wait_for(lock, kPatience, [this] { return is_over_; })) return;
    ADD_FAILURE() << "the mount hangs";
    if (!abort_file.empty()) std::ofstream(abort_file) << "1\n";
  }

  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::jthread thread_;
};

}  // namespace kvslot::testing
