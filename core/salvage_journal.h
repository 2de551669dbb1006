// Which of the journal blocks that a scan found count: behind the end that a recovery had given the
// log lie blocks of before, whole, which must not undo what the store said since.
//
// Called by core/salvage_rebuild.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/records.h"
#include "core/salvage_scan.h"

namespace kvslot {

using OnRecord = std::function<void(Record&&)>;
using OnStamp = std::function<void(std::uint64_t stamp)>;

// The records of a block, as far as they can be read.
void for_each_record(Device& device, const FoundBlock& block, const OnRecord& on_record);
// The stamps of the values in one, and in all of them.
void for_each_stamp(const Record& record, const OnStamp& on_stamp);
void for_each_stamp(Device& device, const FoundBlock& block, const OnStamp& on_stamp);

// What something else says of a log: blocks of this epoch begin here, or before.
struct LogStart {
  std::uint64_t epoch = 0;
  std::uint64_t sequence = 0;
};

// Cut off is what has the sequence that a later epoch began at, or a higher one, and what follows a
// block that was written again.
struct SortedLog {
  std::vector<FoundBlock> in_force;  // in the order to replay
  std::vector<FoundBlock> cut_off;
};
[[nodiscard]] SortedLog sort_log(Device& device, std::vector<FoundBlock> blocks,
                                 std::span<const LogStart> starts);

}  // namespace kvslot
