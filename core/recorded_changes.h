// What the next block will hold besides contents.
#pragma once

#include <kvslot/types.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace kvslot {

// Changes of the namespace that were applied in memory and wait for the next block.
struct RecordedChanges {
  std::vector<std::byte> bytes;
  std::uint32_t count = 0;
  std::set<NodeId>
      touched;  // directories whose times changed: one record each, when a block is made
  [[nodiscard]] std::uint64_t size_bytes() const { return bytes.size() + touched.size() * 64; }
};

}  // namespace kvslot
