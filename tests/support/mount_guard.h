// Nothing stays mounted after a test, however it ended.
#pragma once

#include <sys/mount.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace kvslot::testing {

// A directory to mount on. Detaches what is still mounted there when destroyed; its daemon then
// closes the store by itself.
class MountGuard {
 public:
  explicit MountGuard(std::string directory) : directory_(std::move(directory)) {
    std::error_code ignored;
    std::filesystem::create_directory(directory_, ignored);
  }
  ~MountGuard() {
    while (::umount2(directory_.c_str(), MNT_DETACH) == 0) {
    }
  }
  MountGuard(const MountGuard&) = delete;
  MountGuard& operator=(const MountGuard&) = delete;

  [[nodiscard]] const std::string& path() const { return directory_; }
  [[nodiscard]] std::string path(const std::string& name) const { return directory_ + "/" + name; }

 private:
  std::string directory_;
};

}  // namespace kvslot::testing
