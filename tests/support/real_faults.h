// Durable puts into a mounted store whose device fails for real, and what has to be there then.
// For tests/system only: it runs the command.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>

#include "tests/support/command.h"
#include "tests/support/control_files.h"
#include "tests/support/daemon_process.h"
#include "tests/support/descriptor.h"
#include "tests/support/mount_guard.h"
#include "tests/support/mount_test.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tree_content.h"

#ifdef KVSLOT_BINARY
namespace kvslot::testing {

inline constexpr std::size_t kMebibyte = 1 << 20;

// The bytes of a key, different in each.
inline std::string value_of(const std::string& key, std::size_t size_bytes) {
  std::string value;
  value.reserve(size_bytes + key.size() + 24);
  for (std::size_t line = 0; value.size() < size_bytes; ++line) {
    value += key + ":" + std::to_string(line) + "\n";
  }
  value.resize(size_bytes);
  return value;
}

class RealFaults : public MountTest {
 protected:
  static void format(const std::string& device, const std::string& size = {}) {
    Words words = {"format", device, "--force"};
    if (!size.empty()) words.insert(words.end(), {"--size", size});
    expect_ok(run_kvslot(words));
  }
  void mount(const std::string& device, const std::string& options = "rw") const {
    expect_mounted(run_mount(device, mount_.path(), options), mount_.path());
  }
  void unmount() const { expect_ok(run_kvslot({"unmount", mount_.path()})); }
  static void expect_sound(const std::string& device) {
    const CommandResult checked = run_kvslot({"fsck", device});
    EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  }
  void kill() const { DaemonProcess(mount_.path()).kill(); }
  void put_durably(const std::string& key, std::size_t size_bytes) {
    ASSERT_EQ(write_durably(mount_.path(key), value_of(key, size_bytes)), 0) << key;
    durable_[key] = value_of(key, size_bytes);
  }
  // Behind the last byte that the device holds of a value.
  [[nodiscard]] std::size_t end_on_device(const std::string& key) const {
    std::size_t end = 0;
    for (const StoredExtent& extent : extents_of(mount_.path(), key)) {
      end = std::max(end, extent.device_offset_bytes + extent.size_bytes);
    }
    EXPECT_GT(end, 0U) << key << " is nowhere";
    return end;
  }
  // What the kernel still has of the values would hide what the device says.
  void forget_pages() const {
    for (const auto& file : std::filesystem::directory_iterator(mount_.path())) {
      const int fd = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
      EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0) << file.path();
      ::close(fd);
    }
  }
  // Everything acknowledged is there, byte for byte, and no key has bytes of anything else.
  void expect_durable() const {
    const TreeContent found = read_tree(mount_.path());
    EXPECT_EQ(found.failures, "");
    for (const auto& [key, value] : durable_) {
      const auto at = found.files.find(key);
      ASSERT_NE(at, found.files.end()) << key;
      EXPECT_TRUE(at->second == value) << key << ", " << at->second.size() << " bytes";
    }
  }
  // Puts, a kill, a recovery and a check.
  void expect_good_device(const std::string& device) {
    mount(device);
    for (int i = 0; i < 8; ++i) put_durably("first" + std::to_string(i), 1000 + 70000 * i);
    kill();
    mount(device);
    expect_durable();
    for (int i = 0; i < 8; ++i) put_durably("second" + std::to_string(i), 4096 << i);
    unmount();
    expect_sound(device);
    mount(device);
    expect_durable();
    unmount();
  }

  TempDir directory_;
  MountGuard mount_{directory_.path("mnt")};
  const std::string image_ = directory_.path("store.img");
  std::map<std::string, std::string> durable_;
};

}  // namespace kvslot::testing
#endif  // KVSLOT_BINARY
