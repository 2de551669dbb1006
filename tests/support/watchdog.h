// Lets go of whoever hangs in a mount of a test, so that the test run goes on.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <condition_variable>
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
    struct stat status{};
    EXPECT_EQ(::stat(mount_point.c_str(), &status), 0);
    const std::string abort_file =
        "/sys/fs/fuse/connections/" + std::to_string(minor(status.st_dev)) + "/abort";
    thread_ = std::jthread([this, abort_file](const std::stop_token&) { watch(abort_file); });
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
  void watch(const std::string& abort_file) {
    std::unique_lock lock(mutex_);
    if (over_.wait_for(lock, kPatience, [this] { return is_over_; })) return;
    ADD_FAILURE() << "the mount hangs";
    std::ofstream(abort_file) << "1\n";
  }

  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::jthread thread_;
};

}  // namespace kvslot::testing
