// Reading extents and comparing their checksums, many at a time, and the three judgements on a
// rebuilt state. Called by core/check_load.cc and core/check_device.cc.
#pragma once

#include <kvslot/admin.h>
#include <kvslot/buffer.h>
#include <kvslot/device.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/check_findings.h"
#include "core/check_state.h"
#include "core/layout.h"

namespace kvslot {

enum class ExtentVerdict : std::uint8_t { kGood, kMismatch, kUnreadable };

struct ExtentToRead {
  ObjectId object = ObjectId::kNone;
  Extent extent;
  ExtentVerdict verdict = ExtentVerdict::kGood;
  int os_errno = 0;       // with kUnreadable
  ConstBytes bytes = {};  // of the extent, until the next read
};

// Threads: one thread at a time.
class ExtentReader {
 public:
  static constexpr std::size_t kTogetherBytesMax = 8 * kMiB;

  ExtentReader(Device& device, const Geometry& geometry);

  // Whether all of it lies in the slots; nothing else may be passed to read().
  [[nodiscard]] bool is_inside(const Extent& extent) const;
  // What the extent counts for towards kTogetherBytesMax.
  [[nodiscard]] static std::uint32_t padded_bytes(const Extent& extent) {
    return static_cast<std::uint32_t>(round_up(extent.size_bytes, kBlockSizeBytes));
  }
  // Reads at most kTogetherBytesMax, all under way together, and judges each extent.
  void read(std::span<ExtentToRead> group);

 private:
  Device& device_;
  const Geometry& geometry_;
  Buffer buffer_;  // made by the first read
};

// core/check_tree.cc: names without a directory, circles, two nodes of one name or one place,
// kinds.
void check_tree(const CheckedState& state, Findings& findings);
// core/check_slots.cc: extents in the wrong place, slots with two owners. Fills in the counts.
void check_slots(const CheckedState& state, const Geometry& geometry,
                 std::span<const SlotRun> checkpoint_runs, Findings& findings, CheckReport& report);
// Values whose bytes are not those that were written.
void check_values(Device& device, const Geometry& geometry, const CheckedState& state,
                  const CheckOptions& options, Findings& findings);

}  // namespace kvslot
