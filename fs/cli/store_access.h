// Opening stores for a command that runs and ends.
#pragma once

#include <kvslot/device.h>
#include <kvslot/store.h>

#include <expected>
#include <memory>
#include <string>

#include "fs/session.h"

namespace kvslot::cli {

enum class Access : std::uint8_t { kRead, kWrite };

// Opens what holds a store; the complaint says what is wrong and the remedy, without the path.
std::expected<std::unique_ptr<Device>, Complaint> open_device(const std::string& path,
                                                              Access access);
std::expected<std::unique_ptr<Store>, Complaint> open_store(const std::string& path, Access access,
                                                            std::size_t staging_size_bytes = 0);

// The path from the root, with symbolic links resolved where it exists: a daemon has another
// current directory.
[[nodiscard]] std::string absolute_path(const std::string& path);

}  // namespace kvslot::cli
