// A trailer with a true checksum and any content, as salvage would meet it.
#include <algorithm>

#include "core/layout.h"
#include "tests/fuzz/support/require.h"
#include "tests/support/seal.h"

namespace kvslot::testing {
namespace {

constexpr Uuid kUuid = {1, 2, 3};

void run(ConstBytes bytes) {
  static_cast<void>(read_trailer(bytes, kUuid));
  std::vector<std::byte> block(kBlockSizeBytes);
  std::copy_backward(
      bytes.end() - static_cast<std::ptrdiff_t>(std::min(bytes.size(), block.size() - 12)),
      bytes.end(), block.end() - 12);
  constexpr std::string_view kMagic = "KVTR";
  std::copy_n(std::as_bytes(std::span(kMagic)).begin(), kMagic.size(), block.end() - 12);
  const std::size_t name_bytes = load_number(block, block.size() - 24, 4);
  if (name_bytes <= block.size() - kTrailerFixedBytes) {
    const ConstBytes covered = ConstBytes(block)
                                   .last(kTrailerFixedBytes + name_bytes)
                                   .first(kTrailerFixedBytes + name_bytes - 8);
    store_number(block, block.size() - 8,
                 checksum_of(covered, checksum_seed(kUuid, ChecksumKind::kTrailer, 0, 0)));
  }
  const auto trailer = read_trailer(block, kUuid);
  if (!trailer) return;
  require(trailer->name.size() <= kNameSizeBytesMax, "a name has its limit");
  std::vector<std::byte> slack(kBlockSizeBytes);
  require(write_trailer(slack, *trailer, kUuid), "a trailer fits a block");
  const auto again = read_trailer(slack, kUuid);
  require(again && again->name == trailer->name && again->object == trailer->object &&
              again->size_bytes == trailer->size_bytes && again->stamp == trailer->stamp,
          "what was read can be written");
}

}  // namespace
}  // namespace kvslot::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvslot::testing::run(kvslot::testing::input_bytes(data, size));
  return 0;
}
