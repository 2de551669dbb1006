// Reading and writing the four superblock copies. Called by open, format, info, check and every
// checkpoint.
#pragma once

#include <kvslot/device.h>

#include "core/layout.h"

namespace kvslot {

// The valid copy with the highest sequence.
//   errors   kCorrupt with a step that says what the device holds instead, kInvalid for a newer
//            format or a device of another size, kIo
[[nodiscard]] Result<Superblock> read_superblock(Device& device);

// Writes half of the copies, flushes, writes the others: whatever a crash leaves, one valid copy
// is the old or the new.
[[nodiscard]] Result<void> write_superblock_copies(Device& device, const Superblock& superblock);

}  // namespace kvslot
