// A superblock with a true checksum and any content: refused, or the same after encoding.
#include <algorithm>

#include "core/layout.h"
#include "tests/fuzz/support/require.h"
#include "tests/support/seal.h"

namespace kvslot::testing {
namespace {

void run(ConstBytes bytes) {
  require(!decode_superblock(bytes) || bytes.size() == kBlockSizeBytes, "a block is whole");
  std::vector<std::byte> block(kBlockSizeBytes);
  constexpr std::string_view kMagic = "KVSLOTSB";
  std::copy_n(std::as_bytes(std::span(kMagic)).begin(), kMagic.size(), block.begin());
  std::copy_n(bytes.begin(), std::min(bytes.size(), block.size() - 16), block.begin() + 16);
  seal_superblock(block);
  const auto superblock = decode_superblock(block);
  if (!superblock) return;
  const Geometry& geometry = superblock->geometry;
  require(
      geometry.slots_offset_bytes + std::uint64_t{geometry.slot_count} * geometry.slot_size_bytes <=
          geometry.size_bytes,
      "the slots are inside the device");
  require(
      geometry.journal_offset_bytes + geometry.journal_size_bytes <= geometry.slots_offset_bytes,
      "the journal is before the slots");
  require(geometry.label.size() <= kLabelSizeBytesMax, "a label has its limit");
  const auto again = decode_superblock(encode_superblock(*superblock));
  require(again && again->current == superblock->current &&
              again->previous == superblock->previous && again->sequence == superblock->sequence,
          "what was decoded can be encoded");
}

}  // namespace
}  // namespace kvslot::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvslot::testing::run(kvslot::testing::input_bytes(data, size));
  return 0;
}
