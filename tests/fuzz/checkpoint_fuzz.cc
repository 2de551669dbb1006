// Manifest and chunk with true checksums and any content, and the same bytes without.
#include <algorithm>

#include "core/checkpoint_layout.h"
#include "tests/fuzz/support/require.h"
#include "tests/support/seal.h"

namespace kvslot::testing {
namespace {

constexpr Uuid kUuid = {1, 2, 3};

void store_magic(Bytes target, std::string_view magic) {
  std::copy_n(std::as_bytes(std::span(magic)).begin(), magic.size(), target.begin());
}

void run_manifest(ConstBytes bytes) {
  std::vector<std::byte> block(kBlockSizeBytes);
  std::copy_n(bytes.begin(), std::min(bytes.size(), block.size() - 4), block.begin() + 4);
  static_cast<void>(decode_manifest(block, kUuid));
  store_magic(block, "KVMF");
  seal_manifest(block, kUuid);
  const auto manifest = decode_manifest(block, kUuid);
  if (!manifest) return;
  require(manifest->entries.size() <= kManifestEntriesMax, "a manifest has its limit");
  for (const ManifestEntry& entry : manifest->entries)
    require(entry.size_bytes <= kChunkSizeBytesMax && entry.size_bytes % kBlockSizeBytes == 0,
            "a chunk fits its buffer");
}

void run_chunk(ConstBytes bytes) {
  std::vector<std::byte> chunk(
      std::clamp<std::size_t>(round_up(bytes.size(), kBlockSizeBytes), kBlockSizeBytes, 64 * kKiB));
  std::copy_n(bytes.begin(), std::min(bytes.size(), chunk.size() - 4), chunk.begin() + 4);
  static_cast<void>(open_chunk(chunk, 3, 0, kUuid));
  store_magic(chunk, "KVCK");
  seal_chunk_as_it_is(chunk, kUuid);
  const auto index = static_cast<std::uint32_t>(load_number(chunk, 4, 4));
  const auto payload = open_chunk(chunk, load_number(chunk, 16), index, kUuid);
  if (!payload) return;
  require(payload->data() >= chunk.data() &&
              payload->data() + payload->size() <= chunk.data() + chunk.size(),
          "the payload is inside the chunk");
  require(!open_chunk(chunk, load_number(chunk, 16), index + 1, kUuid), "a chunk has one place");
}

}  // namespace
}  // namespace kvslot::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvslot::testing;
  run_manifest(input_bytes(data, size));
  run_chunk(input_bytes(data, size));
  static_cast<void>(kvslot::open_chunk(input_bytes(data, size), 0, 0, kUuid));
  return 0;
}
