// What a mount says of itself in `.kvslot/config`. Called by `kvslot unmount`.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>

namespace kvslot::cli {

// The `name<TAB>value` lines of a file; empty where it cannot be read.
using MountConfig = std::map<std::string, std::string>;

// Reads it in a process of its own: what looks into a mount whose daemon is stopped, or hangs,
// waits in the kernel until the daemon goes on, and no signal ends that.
//   returns  nothing where there was no answer within 20 seconds
[[nodiscard]] std::optional<MountConfig> read_mount_config(const std::string& directory);

// The process that serves the mount, or 0 where that is unknown.
[[nodiscard]] pid_t server_in(const MountConfig& config);

}  // namespace kvslot::cli
