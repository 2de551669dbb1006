// A ring with any bytes in it, read as a chain: block by block with true checksums where a header
// stands, so that sizes and sequences are judged and not the checksum.
#include <algorithm>

#include "core/journal.h"
#include "core/superblocks.h"
#include "tests/fuzz/support/formatted_image.h"
#include "tests/fuzz/support/require.h"
#include "tests/support/seal.h"

namespace kvslot::testing {
namespace {

constexpr JournalPosition kStart = {.epoch = 9, .offset_bytes = 0, .sequence = 1};

// Each block-sized part of the input that begins like a block is sealed as far as it says it
// reaches; a flag in the first byte of the input also makes the chain of hashes true.
void seal_ring(Bytes ring, const Uuid& uuid, bool links) {
  std::uint64_t previous_hash = 0;
  for (std::uint64_t offset = 0; offset < ring.size();) {
    const auto header = peek_journal_header(ring.subspan(offset, kBlockSizeBytes));
    std::uint64_t size = kBlockSizeBytes;
    if (header && header->size_bytes <= ring.size() - offset) {
      size = header->size_bytes;
      const Bytes block = ring.subspan(offset, size);
      if (links) store_number(block, 32, previous_hash);
      seal_journal(block, uuid);
      previous_hash = load_number(block, 8);
    }
    offset += size;
  }
}

void run(ConstBytes bytes) {
  if (bytes.empty()) return;
  const auto device = formatted_image();
  const Geometry geometry = read_superblock(*device)->geometry;
  const bool links = (bytes[0] & std::byte{1}) != std::byte{0};
  const std::size_t size = std::min<std::size_t>(bytes.size() - 1, 256 * kKiB);
  std::vector<std::byte> ring(round_up(size, kBlockSizeBytes));
  std::copy_n(bytes.begin() + 1, size, ring.begin());
  seal_ring(ring, geometry.uuid, links);
  device->poke(geometry.journal_offset_bytes, ring);
  std::uint64_t sequence = kStart.sequence;
  const auto end =
      read_journal(*device, geometry, kStart, [&](const JournalBlock& block) -> Result<bool> {
        require(block.header.sequence == sequence++, "a chain has no gaps");
        require(block.records().size() == block.header.payload_bytes, "records have their size");
        return true;
      });
  require(end.has_value(), "a ring of any bytes can be read");
  require(end->offset_bytes < geometry.journal_size_bytes, "a chain ends inside the ring");
  require(is_chain_damaged(*device, geometry, *end).has_value(), "and what is behind it, too");
}

}  // namespace
}  // namespace kvslot::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvslot::testing::run(kvslot::testing::input_bytes(data, size));
  return 0;
}
