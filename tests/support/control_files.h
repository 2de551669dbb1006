// What a mounted store says of itself in `.kvslot/`. For tests/system.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvslot::testing {

// The process that serves the mount; -1, and the test has failed, where it does not say.
[[nodiscard]] pid_t server_of(const std::string& mount_point);

// The numbers of `.kvslot/stats`.
using MountStats = std::map<std::string, std::uint64_t>;
[[nodiscard]] MountStats stats_of(const std::string& mount_point);

// One of them; 0, and the test has failed, where there is none of that name.
[[nodiscard]] std::uint64_t stat_of(const std::string& mount_point, const std::string& name);

// Where a key's bytes lie.
struct StoredExtent {
  std::uint64_t device_offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};
[[nodiscard]] std::vector<StoredExtent> extents_of(const std::string& mount_point,
                                                   const std::string& key);

}  // namespace kvslot::testing
