// Everything that a store shows, values that cannot be read included: what two readings of one
// image must agree on.
#pragma once

#include <kvslot/volume.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvslot::testing {

struct SnapshotEntry {
  NodeKind kind = NodeKind::kFile;
  std::uint64_t size_bytes = 0;
  std::uint32_t mode = 0;
  TimestampNs mtime_ns = 0;
  std::string target;  // of a symbolic link
  std::vector<std::pair<std::string, std::string>> xattrs;
  std::optional<std::string> value;  // its beginning and its end; none where reading failed
  bool operator==(const SnapshotEntry&) const = default;
};

// By key; "" is the root.
using Snapshot = std::map<std::string, SnapshotEntry>;

struct SnapshotLimits {
  std::size_t entries_max = SIZE_MAX;
  std::size_t value_bytes_max = SIZE_MAX;  // of each value, from its start and again at its end
};

// Lists and reads everything. A failure of anything but a value's bytes ends it: no snapshot.
[[nodiscard]] std::optional<Snapshot> take_snapshot(Volume& volume,
                                                    const SnapshotLimits& limits = {});

// Keys whose value could not be read.
[[nodiscard]] std::vector<std::string> unreadable(const Snapshot& snapshot);

// The first difference, for people; empty when there is none. Values that `right` could not read
// count as equal with `forgives_unreadable`.
[[nodiscard]] std::string difference(const Snapshot& left, const Snapshot& right,
                                     bool forgives_unreadable = false);

}  // namespace kvslot::testing
