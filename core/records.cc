// Encodes and judges records. Every record begins with its type and the size of what follows, so
// that a reader can bound its work before it trusts anything.
#include "core/records.h"

#include <cerrno>

namespace kvslot {
namespace {

enum class RecordType : std::uint8_t {
  kSetNode = 1,
  kMoveNode,
  kRemoveNode,
  kSetAttributes,
  kSetXattrs,
  kPatchContent,
  kQuarantineSlots,
};

constexpr std::size_t kPrefixBytes = 5;      // type, size of the body
constexpr std::size_t kNodeFixedBytes = 76;  // of SetNode, without what varies in length

void encode_attributes(ByteWriter& out, const Attributes& attributes) {
  out.number(static_cast<std::uint16_t>(attributes.mode));
  out.number(attributes.uid);
  out.number(attributes.gid);
  out.number(attributes.atime_ns);
  out.number(attributes.mtime_ns);
  out.number(attributes.ctime_ns);
}

Attributes decode_attributes(ByteReader& in) {
  Attributes attributes;
  attributes.mode = in.number<std::uint16_t>() & 07777;
  attributes.uid = in.number<std::uint32_t>();
  attributes.gid = in.number<std::uint32_t>();
  attributes.atime_ns = in.number<TimestampNs>();
  attributes.mtime_ns = in.number<TimestampNs>();
  attributes.ctime_ns = in.number<TimestampNs>();
  return attributes;
}

void encode_name(ByteWriter& out, std::string_view name) {
  out.number(static_cast<std::uint8_t>(name.size()));
  out.text(name);
}

std::string decode_name(ByteReader& in) { return std::string(in.text(in.number<std::uint8_t>())); }

void encode_xattrs(ByteWriter& out, const Xattrs& xattrs) {
  out.number(static_cast<std::uint16_t>(xattrs.size()));
  for (const auto& [name, value] : xattrs) {
    encode_name(out, name);
    out.number(static_cast<std::uint32_t>(value.size()));
    out.text(value);
  }
}

// Names as they can be listed, one behind the other, and no more of them than can be set.
bool decode_xattrs(ByteReader& in, Xattrs& xattrs) {
  const auto count = in.number<std::uint16_t>();
  for (std::uint16_t i = 0; i < count && in.ok(); ++i) {
    std::string name = decode_name(in);
    if (name.empty() || name.find('\0') != std::string::npos) return false;
    xattrs.emplace_back(std::move(name), in.text(in.number<std::uint32_t>()));
  }
  return in.ok() && xattrs_bytes(xattrs) <= kXattrSizeBytesMax;
}

void encode_extents(ByteWriter& out, const std::vector<Extent>& extents) {
  out.number(static_cast<std::uint32_t>(extents.size()));
  for (const Extent& extent : extents) {
    out.number(extent.file_block);
    out.number(extent.size_bytes);
    out.number(extent.device_block);
    out.number(extent.stamp);
    out.number(extent.checksum);
  }
}

// Extents in order, none empty or too large, none overlapping.
bool decode_extents(ByteReader& in, std::vector<Extent>& extents) {
  const auto count = in.number<std::uint32_t>();
  if (count > in.left() / kExtentRecordBytes) return false;
  extents.reserve(count);
  std::uint64_t end_bytes = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    Extent extent;
    extent.file_block = in.number<std::uint32_t>();
    extent.size_bytes = in.number<std::uint32_t>();
    extent.device_block = in.number<std::uint32_t>();
    extent.stamp = in.number<std::uint64_t>();
    extent.checksum = in.number<std::uint64_t>();
    const std::uint64_t start_bytes = std::uint64_t{extent.file_block} * kBlockSizeBytes;
    if (extent.size_bytes == 0 || extent.size_bytes > kExtentSizeBytesMax ||
        start_bytes < end_bytes || extent.stamp > kIdMax)
      return false;
    end_bytes = start_bytes + extent.size_bytes;
    extents.push_back(extent);
  }
  return in.ok();
}

void encode_body(ByteWriter& out, const SetNode& record) {
  const NodeImage& image = record.image;
  out.number(image.object);
  out.number(image.parent);
  out.number(image.kind);
  encode_attributes(out, image.attributes);
  out.number(image.size_bytes);
  out.number(image.cookie);
  encode_name(out, image.name);
  out.number(static_cast<std::uint16_t>(image.target.size()));
  out.text(image.target);
  encode_xattrs(out, image.xattrs);
  encode_extents(out, image.extents);
}

Result<Record> decode_set_node(ByteReader& in) {
  NodeImage image;
  image.object = in.number<ObjectId>();
  image.parent = in.number<ObjectId>();
  const auto kind = in.number<std::uint8_t>();
  image.attributes = decode_attributes(in);
  image.size_bytes = in.number<std::uint64_t>();
  image.cookie = in.number<std::uint64_t>();
  image.name = decode_name(in);
  image.target = std::string(in.text(in.number<std::uint16_t>()));
  if (!decode_xattrs(in, image.xattrs) || !decode_extents(in, image.extents))
    return fail(Errc::kCorrupt, "node record: contents");
  if (kind > static_cast<std::uint8_t>(NodeKind::kSymlink) || image.object == ObjectId::kNone ||
      static_cast<std::uint64_t>(image.object) > kIdMax || image.cookie > kIdMax)
    return fail(Errc::kCorrupt, "node record: kind");
  image.kind = static_cast<NodeKind>(kind);
  const bool is_root = image.object == ObjectId::kRoot;
  if (is_root ? image.kind != NodeKind::kDirectory || !image.name.empty()
              : !is_valid_name(image.name))
    return fail(Errc::kCorrupt, "node record: name");
  const bool has_target = !image.target.empty();
  if (image.target.size() > kSymlinkSizeBytesMax ||
      has_target != (image.kind == NodeKind::kSymlink) ||
      image.target.find('\0') != std::string::npos)
    return fail(Errc::kCorrupt, "node record: target of a symbolic link");
  if (image.size_bytes > kValueSizeBytesMax) return fail(Errc::kCorrupt, "node record: size");
  if (!image.extents.empty()) {
    const Extent& last = image.extents.back();
    if (std::uint64_t{last.file_block} * kBlockSizeBytes + last.size_bytes > image.size_bytes)
      return fail(Errc::kCorrupt, "node record: bytes past the size");
  }
  return SetNode{std::move(image)};
}

void encode_body(ByteWriter& out, const MoveNode& record) {
  out.number(record.object);
  out.number(record.parent);
  out.number(record.cookie);
  out.number(record.ctime_ns);
  encode_name(out, record.name);
}

Result<Record> decode_move_node(ByteReader& in) {
  MoveNode record{};
  record.object = in.number<ObjectId>();
  record.parent = in.number<ObjectId>();
  record.cookie = in.number<std::uint64_t>();
  record.ctime_ns = in.number<TimestampNs>();
  record.name = decode_name(in);
  if (!is_valid_name(record.name)) return fail(Errc::kCorrupt, "move record: name");
  if (record.cookie > kIdMax) return fail(Errc::kCorrupt, "move record: cookie");
  return record;
}

void encode_body(ByteWriter& out, const RemoveNode& record) { out.number(record.object); }

void encode_body(ByteWriter& out, const SetAttributes& record) {
  out.number(record.object);
  encode_attributes(out, record.attributes);
}

void encode_body(ByteWriter& out, const SetXattrs& record) {
  out.number(record.object);
  out.number(record.ctime_ns);
  encode_xattrs(out, record.xattrs);
}

Result<Record> decode_set_xattrs(ByteReader& in) {
  SetXattrs record{};
  record.object = in.number<ObjectId>();
  record.ctime_ns = in.number<TimestampNs>();
  if (!decode_xattrs(in, record.xattrs)) return fail(Errc::kCorrupt, "xattr record");
  return record;
}

void encode_body(ByteWriter& out, const PatchContent& record) {
  out.number(record.object);
  encode_attributes(out, record.attributes);
  out.number(record.size_bytes);
  out.number(static_cast<std::uint32_t>(record.windows.size()));
  for (const auto& window : record.windows) {
    out.number(window.window);
    encode_extents(out, window.extents);
  }
}

Result<Record> decode_patch_content(ByteReader& in) {
  PatchContent record{};
  record.object = in.number<ObjectId>();
  record.attributes = decode_attributes(in);
  record.size_bytes = in.number<std::uint64_t>();
  if (record.size_bytes > kValueSizeBytesMax) return fail(Errc::kCorrupt, "patch record: size");
  const auto count = in.number<std::uint32_t>();
  if (count > in.left()) return fail(Errc::kCorrupt, "patch record: count");
  for (std::uint32_t i = 0; i < count; ++i) {
    PatchContent::Window window{.window = in.number<std::uint32_t>(), .extents = {}};
    if (!decode_extents(in, window.extents)) return fail(Errc::kCorrupt, "patch record: extents");
    record.windows.push_back(std::move(window));
  }
  return record;
}

void encode_body(ByteWriter& out, const QuarantineSlots& record) {
  out.number(record.run.first);
  out.number(record.run.count);
}

template <typename T>
constexpr RecordType type_of() {
  if constexpr (std::is_same_v<T, SetNode>) return RecordType::kSetNode;
  if constexpr (std::is_same_v<T, MoveNode>) return RecordType::kMoveNode;
  if constexpr (std::is_same_v<T, RemoveNode>) return RecordType::kRemoveNode;
  if constexpr (std::is_same_v<T, SetAttributes>) return RecordType::kSetAttributes;
  if constexpr (std::is_same_v<T, SetXattrs>) return RecordType::kSetXattrs;
  if constexpr (std::is_same_v<T, PatchContent>) return RecordType::kPatchContent;
  if constexpr (std::is_same_v<T, QuarantineSlots>) return RecordType::kQuarantineSlots;
}

Result<Record> decode_body(std::uint8_t type, ByteReader& in) {
  switch (static_cast<RecordType>(type)) {
    case RecordType::kSetNode:
      return decode_set_node(in);
    case RecordType::kMoveNode:
      return decode_move_node(in);
    case RecordType::kRemoveNode:
      return RemoveNode{in.number<ObjectId>()};
    case RecordType::kSetAttributes: {
      const auto object = in.number<ObjectId>();
      return SetAttributes{object, decode_attributes(in)};
    }
    case RecordType::kSetXattrs:
      return decode_set_xattrs(in);
    case RecordType::kPatchContent:
      return decode_patch_content(in);
    case RecordType::kQuarantineSlots: {
      const auto first = in.number<SlotId>();
      return QuarantineSlots{{first, in.number<std::uint32_t>()}};
    }
  }
  return fail(Errc::kCorrupt, "record: unknown type");
}

}  // namespace

bool is_valid_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

void encode_record(std::vector<std::byte>& out, const Record& record) {
  ByteWriter writer(out);
  const std::size_t start = out.size();
  std::visit(
      [&](const auto& body) {
        writer.number(type_of<std::decay_t<decltype(body)>>());
        writer.number(std::uint32_t{0});
        encode_body(writer, body);
      },
      record);
  const auto body_bytes = static_cast<std::uint32_t>(out.size() - start - kPrefixBytes);
  std::memcpy(out.data() + start + 1, &body_bytes, sizeof body_bytes);
}

Result<Record> decode_record(ByteReader& in) {
  const auto type = in.number<std::uint8_t>();
  const auto body_bytes = in.number<std::uint32_t>();
  ByteReader body(in.bytes(body_bytes));
  if (!in.ok()) return fail(Errc::kCorrupt, "record: longer than its block");
  Result<Record> record = decode_body(type, body);
  if (record && (!body.ok() || body.left() != 0)) return fail(Errc::kCorrupt, "record: size");
  return record;
}

std::size_t record_size(ConstBytes bytes) {
  if (bytes.size() < kPrefixBytes) return 0;
  std::uint32_t body_bytes = 0;
  std::memcpy(&body_bytes, bytes.data() + 1, sizeof body_bytes);
  return bytes.size() - kPrefixBytes < body_bytes ? 0 : kPrefixBytes + body_bytes;
}

Result<std::optional<Record>> RecordReader::next() {
  const ConstBytes left = stream_.subspan(done_bytes_);
  const std::size_t size = record_size(left);
  if (size == 0) return std::nullopt;
  ByteReader in(left.first(size));
  auto record = decode_record(in);
  if (!record) return fail(record);
  done_bytes_ += size;
  return std::move(*record);
}

std::uint64_t xattrs_bytes(const Xattrs& xattrs) {
  std::uint64_t bytes = 0;
  for (const auto& [name, value] : xattrs) bytes += 5 + name.size() + value.size();
  return bytes;
}

std::uint64_t node_record_bytes(std::size_t name_bytes, std::size_t target_bytes,
                                const Xattrs* xattrs, std::size_t extent_count) {
  return kPrefixBytes + kNodeFixedBytes + name_bytes + target_bytes +
         (xattrs == nullptr ? 0 : xattrs_bytes(*xattrs)) + extent_count * kExtentRecordBytes;
}

}  // namespace kvslot
