// What a mount needs before anything is started. Called by `kvslot mount` and `kvslot exec`.
#pragma once

#include <expected>
#include <string>
#include <vector>

#include "fs/mount_options.h"
#include "fs/session.h"

namespace kvslot::cli {

// The options of every -o, with both paths made absolute.
[[nodiscard]] std::expected<MountOptions, Complaint> make_mount_options(
    const std::string& path, const std::string& directory, const std::vector<std::string>& texts);

// Why a directory cannot be mounted on.
[[nodiscard]] std::expected<void, Complaint> check_mount_point(const std::string& directory);

}  // namespace kvslot::cli
