// Where a program keeps its chunks: the root of a mounted store, or a directory of an ordinary file
// system, on which the same tests must hold, or they ask too much. For tests/system only.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/descriptor.h"
#include "tests/support/mounted_store.h"
#include "tests/support/uring_transport.h"
#include "tests/support/watchdog.h"

#ifdef KVSLOT_BINARY
namespace kvslot::testing {

// Both transports; and a directory of its own in KVSLOT_CLIENTS_DIRECTORY, where that is set.
[[nodiscard]] inline std::vector<std::string> client_places() {
  std::vector<std::string> places{"dev", "uring"};
  if (std::getenv("KVSLOT_CLIENTS_DIRECTORY") != nullptr) places.emplace_back("directory");
  return places;
}

class ClientPlace {
 public:
  [[nodiscard]] static std::string why_not(const std::string& kind) {
    if (kind == "directory") return {};
    if (std::string why = why_no_mount(); !why.empty()) return why;
    return kind == "uring" ? why_no_uring_transport() : std::string();
  }

  ClientPlace(const std::string& kind, const std::string& size, const std::string& options) {
    if (kind == "directory") {
      root_ = std::string(std::getenv("KVSLOT_CLIENTS_DIRECTORY")) + "/chunks";
      std::filesystem::remove_all(root_);
      std::filesystem::create_directory(root_);
      return;
    }
    store_ = std::make_unique<MountedStore>(size, options + ",transport=" + kind);
    root_ = store_->root();
    watchdog_ = std::make_unique<Watchdog>(root_);
  }
  ~ClientPlace() {
    std::error_code ignored;
    if (store_ == nullptr) std::filesystem::remove_all(root_, ignored);
  }
  ClientPlace(const ClientPlace&) = delete;
  ClientPlace& operator=(const ClientPlace&) = delete;

  [[nodiscard]] const std::string& root() const { return root_; }
  [[nodiscard]] std::string path(const std::string& name) const { return root_ + "/" + name; }
  // Nothing where it is an ordinary directory.
  [[nodiscard]] MountedStore* store() const { return store_.get(); }

  // Until nothing is on its way to the device and the space of removed files is free again.
  void settle() const {
    const Descriptor root(root_, O_RDONLY | O_DIRECTORY);
    EXPECT_EQ(::fsync(root), 0);
    if (store_ != nullptr) store_->wait_until_removed_files_are_gone();
  }
  [[nodiscard]] std::uint64_t free_blocks() const {
    struct statvfs status{};
    EXPECT_EQ(::statvfs(root_.c_str(), &status), 0) << errno;
    EXPECT_EQ(status.f_bsize, 4096U);
    EXPECT_EQ(status.f_frsize, 4096U);
    return status.f_bavail;
  }
  // The store, unmounted, is clean.
  void expect_sound() {
    watchdog_.reset();
    if (store_ != nullptr) store_->expect_sound();
  }

 private:
  std::unique_ptr<MountedStore> store_;
  std::unique_ptr<Watchdog> watchdog_;
  std::string root_;
};

// A test over a place; the parameter says which.
class ClientPlaceTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = ClientPlace::why_not(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};

[[nodiscard]] inline std::string name_of_place(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

}  // namespace kvslot::testing
#endif  // KVSLOT_BINARY
