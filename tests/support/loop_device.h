// A loop device over an image file: a real block device for tests that run as root.
#pragma once

#include <kvslot/error.h>

#include <string>
#include <utility>

#include "core/unique_fd.h"

namespace kvslot::testing {

// Threads: one thread at a time. Detached when destroyed and the last other user has closed it.
class LoopDevice {
 public:
  //   errors   kInvalid with EPERM (not root) or ENOENT (no loop devices here): skip the test
  [[nodiscard]] static Result<LoopDevice> attach(const std::string& image_path);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  LoopDevice(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

}  // namespace kvslot::testing
