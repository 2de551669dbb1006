// A loop device over an image for tests of the command, which see nothing of core/.
#pragma once

#include <string>

#include "tests/support/command.h"

namespace kvslot::testing {

// Detached at the end. Its path is empty where there are no loop devices.
class AttachedImage {
 public:
  explicit AttachedImage(const std::string& image, unsigned sector_size_bytes = 512)
      : path_(run_shell("losetup -f --show --sector-size \"$2\" \"$1\"",
                        {image, std::to_string(sector_size_bytes)})
                  .out) {
    if (!path_.empty()) path_.pop_back();
  }
  ~AttachedImage() { (void)run_shell("losetup -d \"$1\"", {path_}); }
  AttachedImage(const AttachedImage&) = delete;
  AttachedImage& operator=(const AttachedImage&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kvslot::testing
