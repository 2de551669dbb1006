// Reading and writing the four superblock copies. Called by open, format, info, check and every
// checkpoint.
#pragma once

#include <kvslot/device.h>

#include <vector>

#include "core/layout.h"

namespace kvslot {

// The valid copy with the highest sequence. A device that lost its end is refused, or not: then
// areas may lie behind where it ends now.
//   errors   kCorrupt with a step that says what the device holds instead, kInvalid for a newer
//            format, kIo
enum class CutOff : std::uint8_t { kRefused, kAllowed };
[[nodiscard]] Result<Superblock> read_superblock(Device& device, CutOff cut_off = CutOff::kRefused);

// What the next superblock, and a checkpoint that it is the first to name, are numbered: no attempt
// at one had this number, as long as each that failed has had its own spent on a superblock.
[[nodiscard]] std::uint64_t sequence_after(const Superblock& superblock);

// Writes half of the copies: the first half, then (after a flush, which is the caller's) the
// second. Whatever a crash leaves, one valid copy is the old or the new, if the second half waits
// until one of the first was written.
//   returns  the copies that were not; none is tried after one that failed because the device is
//            lost
enum class SuperblockHalf : std::uint8_t { kFirst, kSecond };
inline constexpr std::size_t kCopiesInHalf = kSuperblockCopies / 2;
struct UnwrittenCopy {
  std::size_t copy = 0;
  Error error;
};
[[nodiscard]] std::vector<UnwrittenCopy> write_superblock_half(Device& device,
                                                               const Superblock& superblock,
                                                               SuperblockHalf half);

}  // namespace kvslot
