// A loop device over an image for tests of the command, which see nothing of core/.
#pragma once

#include <string>

#include "tests/support/command.h"

namespace kvslot::testing {

// A loop device over an image, detached at the end.
class AttachedImage {
 public:
  explicit AttachedImage(const std::string& image)
      : path_(run_shell("losetup -f --show \"$1\"", {image}).out) {
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
