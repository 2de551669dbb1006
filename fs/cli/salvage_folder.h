// The folder that salvaged values are written to. Nothing is ever written outside of it, or over
// anything. Called by `kvslot fsck --salvage`.
#pragma once

#include <kvslot/admin.h>

#include <cstdint>
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
  // Gives directories what is known of them, and waits until all of it reached the disk.
  virtual Result<void> finish() = 0;
  // Of files, directories and links: the folder's file system could not hold all that was known of
  // them, such as an extended attribute.
  [[nodiscard]] virtual std::uint64_t changed_count() const = 0;
};

}  // namespace kvslot::cli
