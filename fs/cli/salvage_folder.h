// The folder that salvaged values are written to. Nothing is ever written outside of it, or over
// anything. Called by `kvslot fsck --salvage`.
#pragma once

#include <kvslot/admin.h>

#include <expected>
#include <memory>
#include <string>

#include "fs/session.h"

namespace kvslot::cli {

// Threads: one thread at a time.
class SalvageFolder : public SalvageSink {
 public:
  // The folder must not exist yet, or be empty.
  static std::expected<std::unique_ptr<SalvageFolder>, Complaint> open(const std::string& path);
  // Whether all of it reached the disk.
  virtual Result<void> finish() = 0;
};

}  // namespace kvslot::cli
