// Single transfers of any size on a Device, cut to its limits. For everything that is not the put
// or get path: superblocks, checkpoints, journal replay.
#pragma once

#include <kvslot/buffer.h>
#include <kvslot/device.h>

namespace kvslot {

// Whole blocks at a block boundary, from or into aligned memory; all pieces go out together.
[[nodiscard]] Result<void> read_device(Device& device, std::uint64_t offset_bytes, Bytes target);
[[nodiscard]] Result<void> write_device(Device& device, std::uint64_t offset_bytes,
                                        ConstBytes source);

}  // namespace kvslot
