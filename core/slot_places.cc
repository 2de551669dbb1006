// See slot_places.h.
#include "core/slot_places.h"

#include <algorithm>

namespace kvslot {

std::vector<SlotRun> SlotPlaces::runs_of(std::span<const Extent> extents) const {
  std::vector<SlotRun> runs;
  for (const Extent& extent : extents) {
    const auto first = static_cast<std::uint32_t>(slot_of(extent.device_block));
    const auto last_block =
        extent.device_block +
        static_cast<std::uint32_t>(units_of(extent.size_bytes, kBlockSizeBytes)) - 1;
    const auto end = static_cast<std::uint32_t>(slot_of(last_block)) + 1;
    if (!runs.empty()) {
      SlotRun& previous = runs.back();
      const std::uint32_t previous_end =
          static_cast<std::uint32_t>(previous.first) + previous.count;
      const bool adjoins =
          first <= previous_end && first >= static_cast<std::uint32_t>(previous.first);
      if (adjoins) {
        previous.count = std::max(previous_end, end) - static_cast<std::uint32_t>(previous.first);
        continue;
      }
    }
    runs.push_back({SlotId{first}, end - first});
  }
  return runs;
}

}  // namespace kvslot
