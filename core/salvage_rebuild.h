// Puts together what a store said from the structures that a scan found: the newest checkpoint as
// far as it is there, and every block of the journal over it.
//
// Step before: core/salvage_scan.*. Step after: core/salvage_device.cc writes the values out.
#pragma once

#include <tsl/robin_map.h>
#include <tsl/robin_set.h>

#include <cstdint>

#include "core/check_state.h"
#include "core/salvage_scan.h"

namespace kvslot {

struct Rebuilt {
  tsl::robin_set<std::uint64_t> removed;   // objects that the journal removes
  tsl::robin_set<std::uint64_t> given_up;  // stamps of values in blocks that a recovery cut off
  // The newest stamp given out before the last record of an object's value: older values are not
  // the object's any more, though it may have none.
  tsl::robin_map<std::uint64_t, std::uint64_t> said_at;
  bool has_checkpoint = false;  // one of which every chunk is there
};

// The window size that the patches of the journal were cut by; kExtentSizeBytesMax where none says.
[[nodiscard]] std::uint32_t window_bytes_of(Device& device, const Found& found);

// `superblock` says from where on to replay, where there is one.
[[nodiscard]] Rebuilt rebuild_state(Device& device, const Found& found,
                                    const Superblock* superblock, CheckedState& state);

}  // namespace kvslot
