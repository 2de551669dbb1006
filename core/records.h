// What the journal says, record by record, and the image of a node in a checkpoint. Records name
// objects by id and state what is, not what changed, so that replaying them over a checkpoint
// that already saw some of them ends in the same state.
//
// Step before: core/names.cc and core/commit.cc make records. Step after: core/recovery.cc.
#pragma once

#include <kvslot/error.h>
#include <kvslot/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/codec.h"
#include "core/layout.h"

namespace kvslot {

// Extents name their place in a value in 32 bits.
inline constexpr std::uint64_t kValueSizeBytesMax = (std::uint64_t{1} << 32) * kBlockSizeBytes;

using Xattrs = std::vector<std::pair<std::string, std::string>>;

// Everything about a node.
struct NodeImage {
  ObjectId object = ObjectId::kNone;
  ObjectId parent = ObjectId::kNone;
  NodeKind kind = NodeKind::kFile;
  Attributes attributes;
  std::uint64_t size_bytes = 0;
  std::uint64_t cookie = 0;  // place in the listing of its directory; 0: the object id
  std::string name;
  std::string target;  // of a symlink
  Xattrs xattrs;
  std::vector<Extent> extents;
};

// The node is exactly this.
struct SetNode {
  NodeImage image;
};
// The node has this name.
struct MoveNode {
  ObjectId object, parent;
  std::uint64_t cookie = 0;
  TimestampNs ctime_ns = 0;
  std::string name;
};
// There is no such node.
struct RemoveNode {
  ObjectId object;
};
struct SetAttributes {
  ObjectId object;
  Attributes attributes;
};
struct SetXattrs {
  ObjectId object;
  TimestampNs ctime_ns = 0;
  Xattrs xattrs;
};
// These windows of the node have these extents, and nothing lies past its size.
struct PatchContent {
  struct Window {
    std::uint32_t window;
    std::vector<Extent> extents;
  };
  ObjectId object;
  Attributes attributes;
  std::uint64_t size_bytes = 0;
  std::vector<Window> windows;
};
// These slots failed a write and are never used again.
struct QuarantineSlots {
  SlotRun run;
};

using Record = std::variant<SetNode, MoveNode, RemoveNode, SetAttributes, SetXattrs, PatchContent,
                            QuarantineSlots>;

// Whether the bytes can be one component of a key.
[[nodiscard]] bool is_valid_name(std::string_view name);

void encode_record(std::vector<std::byte>& out, const Record& record);
// Decodes one record and leaves the reader behind it.
[[nodiscard]] Result<Record> decode_record(ByteReader& in);

// The size of the record that stands in front, or 0 where not all of it is there.
[[nodiscard]] std::size_t record_size(ConstBytes bytes);

// Takes whole records from the front of a stream that may be cut anywhere.
// Threads: one thread at a time.
class RecordReader {
 public:
  explicit RecordReader(ConstBytes stream) : stream_(stream) {}
  // Nothing at the end, or where the next one is cut off. After an error it goes no further.
  [[nodiscard]] Result<std::optional<Record>> next();
  [[nodiscard]] std::size_t done_bytes() const { return done_bytes_; }  // of what next() gave

 private:
  ConstBytes stream_;
  std::size_t done_bytes_ = 0;
};

// The bytes that encode_record(SetNode{image}) appends, without doing it.
[[nodiscard]] std::uint64_t node_record_bytes(std::size_t name_bytes, std::size_t target_bytes,
                                              const Xattrs* xattrs, std::size_t extent_count);
[[nodiscard]] std::uint64_t xattrs_bytes(const Xattrs& xattrs);

// Bounds for sizing blocks before records are made.
inline constexpr std::uint64_t kExtentRecordBytes = 28;
inline constexpr std::uint64_t kRecordBytesMax = 512;  // without extents, xattrs and target

}  // namespace kvslot
