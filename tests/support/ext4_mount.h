// An ext4 to compare with, in an image on a loop device. For tests that run as root.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/support/attached_image.h"
#include "tests/support/command.h"
#include "tests/support/mount_guard.h"
#include "tests/support/temp_dir.h"

namespace kvslot::testing {

// Without access times, set-user-ID programs and devices, as a store is mounted; and in no need to
// survive anything.
class Ext4Mount {
 public:
  explicit Ext4Mount(std::uintmax_t size_bytes)
      : guard_(directory_.path("mnt")), image_(directory_.make_image("ext4.img", size_bytes)) {
    CommandResult made = run_command({"mkfs.ext4", "-q", "-F", "-O", "^has_journal", image_});
    if (made.exit_code != 0) {
      why_not_ = "no mkfs.ext4: " + made.err;
      return;
    }
    device_ = std::make_unique<AttachedImage>(image_);
    if (device_->path().empty()) {
      why_not_ = "no loop devices";
      return;
    }
    made = run_command(
        {"mount", "-t", "ext4", "-o", "noatime,nosuid,nodev,barrier=0", device_->path(), root()});
    if (made.exit_code != 0) why_not_ = "no ext4: " + made.err;
  }

  // Why there is none here: skip the test. Empty where there is one.
  [[nodiscard]] const std::string& why_not() const { return why_not_; }
  [[nodiscard]] const std::string& root() const { return guard_.path(); }

 private:
  TempDir directory_;
  std::unique_ptr<AttachedImage> device_;  // Detached when the mount is gone.
  MountGuard guard_;
  std::string image_;
  std::string why_not_;
};

}  // namespace kvslot::testing
