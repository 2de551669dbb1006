// What the pseudo-files say: the engine's records as lines of text. Takes snapshots from the
// Inspector, waits for nothing (check_slot excepted), keeps nothing.
// Called by fs/pseudo_tree and fs/pseudo_handles.
#pragma once

#include <kvslot/error.h>
#include <kvslot/inspect.h>
#include <kvslot/types.h>
#include <kvslot/volume.h>

#include <functional>
#include <string>
#include <vector>

#include "fs/pseudo_tree.h"

namespace kvslot {

// `live_node`, where there is one, tells the requests that wait for a put.
[[nodiscard]] std::string render_inflight(const Inspector& inspector,
                                          const std::function<LiveNodeInfo(NodeId)>& live_node);
[[nodiscard]] std::string render_batches(const Inspector& inspector);
[[nodiscard]] std::string render_errors(const Inspector& inspector);
[[nodiscard]] std::string render_journal(const Inspector& inspector);
[[nodiscard]] std::string render_stats(const Inspector& inspector, const std::vector<Stat>& added);
[[nodiscard]] std::string render_config(Volume& volume, const ConfigLines& added);

// One key in full: `name<TAB>value` lines, then its runs, then its extents.
//   errors   kNotFound: the key is gone
[[nodiscard]] Result<std::string> render_key(const Volume& volume, const NodeRecord& record,
                                             const LiveNodeInfo& live);

inline constexpr std::string_view kIndexHeader =
    "#key\tsize_bytes\tpieces\tfirst_slot\tslots\tchecksum\tsequence\tmtime_s\tstate\n";
[[nodiscard]] std::string render_index_line(const NodeRecord& record, const LiveNodeInfo& live);

inline constexpr std::string_view kSlotsHeader = "#first_slot\tcount\tstate\towner\tpiece\n";
[[nodiscard]] std::string render_slots_line(const SlotRecord& record);

// Whether what the device holds in a slot has the checksum that the index knows.
enum class SlotCheck : std::uint8_t { kNone, kUnknown, kHolds, kFails, kFreed, kError };

// kUnknown for a slot that check_slot() would read, kNone for one that holds no value.
[[nodiscard]] SlotCheck slot_check_needed(const Volume& volume, const SlotRecord& record);

// Reads the extents that lie in the slot: the only pseudo-file that waits for the device.
[[nodiscard]] SlotCheck check_slot(Volume& volume, SlotId slot, const SlotRecord& record);

// The run that holds a slot. As long for kUnknown as for any outcome, so that the size is known
// before the device was asked.
[[nodiscard]] std::string render_slot(const SlotRecord& record, SlotCheck check);

}  // namespace kvslot
