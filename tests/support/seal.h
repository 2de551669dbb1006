// Makes checksums true again after a structure was changed, so that what stands behind them is
// tested too. Written from core/LAYOUT.md "Checksums", as somebody who forges an image would.
#pragma once

#include <kvslot/options.h>
#include <kvslot/types.h>

#include "core/layout.h"

namespace kvslot::testing {

// Each takes a whole structure and fills in its checksum. What the seed needs (epoch, sequence,
// index) is read from the structure as it is.
void seal_superblock(Bytes block);
void seal_journal(Bytes block, const Uuid& uuid);
void seal_manifest(Bytes block, const Uuid& uuid);
void seal_chunk_as_it_is(Bytes chunk, const Uuid& uuid);

[[nodiscard]] std::uint64_t load_number(ConstBytes source, std::size_t offset_bytes,
                                        std::size_t size_bytes = 8);
void store_number(Bytes target, std::size_t offset_bytes, std::uint64_t value,
                  std::size_t size_bytes = 8);

}  // namespace kvslot::testing
