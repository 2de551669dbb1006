// Records: what is decoded can be encoded, and is then the same record in the same bytes.
#include "core/records.h"

#include "tests/fuzz/support/require.h"

namespace kvslot::testing {
namespace {

void run(ConstBytes bytes) {
  ByteReader in(bytes);
  while (in.left() != 0) {
    const auto record = decode_record(in);
    if (!record) return;
    std::vector<std::byte> once, twice;
    encode_record(once, *record);
    ByteReader second(once);
    const auto again = decode_record(second);
    require(again.has_value() && second.left() == 0, "what was decoded can be encoded");
    encode_record(twice, *again);
    require(once == twice, "a record has one encoding");
    if (const auto* set = std::get_if<SetNode>(&*record)) {
      const NodeImage& image = set->image;
      require(once.size() == node_record_bytes(image.name.size(), image.target.size(),
                                               &image.xattrs, image.extents.size()),
              "the size of a node's record is known beforehand");
      require(xattrs_bytes(image.xattrs) <= kXattrSizeBytesMax, "attributes have their limit");
      require(image.target.size() <= kSymlinkSizeBytesMax, "a link's target has its limit");
    }
  }
}

}  // namespace
}  // namespace kvslot::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvslot::testing::run(kvslot::testing::input_bytes(data, size));
  return 0;
}
