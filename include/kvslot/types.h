// The vocabulary of kvslot: bytes, identities, attributes, and where a value lies on the device.
// Included by every other public header.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvslot {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// The unit of device addresses, of O_DIRECT transfers and of statfs.
inline constexpr std::uint32_t kBlockSizeBytes = 4096;

// A value is cut at multiples of the window size: max(kExtentSizeBytesMax, slot size). A window is
// written, replaced and freed as a whole; an extent is what one checksum covers.
inline constexpr std::uint32_t kExtentSizeBytesMax = 128 * 1024;

inline constexpr std::size_t kNameSizeBytesMax = 255;         // one component of a key
inline constexpr std::size_t kSymlinkSizeBytesMax = 4095;     // target of a symbolic link
inline constexpr std::size_t kXattrSizeBytesMax = 64 * 1024;  // all attributes of a node together

// The name at the root under which a mount shows the engine's state; no key can be put there.
inline constexpr std::string_view kReservedName = ".kvslot";

// Which object: the inode number. Stored with the key, kept by rename, never reused.
enum class ObjectId : std::uint64_t { kNone = 0, kRoot = 1 };

// Which node of the tree in memory. Valid while the node is linked or held (Volume::hold); not
// stored, not stable across open. kRoot is the root directory.
enum class NodeId : std::uint32_t { kNone = 0, kRoot = 1 };

// Which slot, counted from 0 at the start of the slot area.
enum class SlotId : std::uint32_t {};

struct SlotRun {
  SlotId first{};
  std::uint32_t count = 0;
  auto operator<=>(const SlotRun&) const = default;
};

enum class NodeKind : std::uint8_t { kFile = 0, kDirectory = 1, kSymlink = 2 };

// Nanoseconds since 1970, negative before: years 1677 to 2262.
using TimestampNs = std::int64_t;

struct Attributes {
  std::uint32_t mode = 0644;  // the twelve permission bits; the kind is not in here
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  TimestampNs atime_ns = 0;
  TimestampNs mtime_ns = 0;
  TimestampNs ctime_ns = 0;
};

// Contiguous bytes of a value on the device, under one checksum. Extents of a value are sorted,
// never overlap, and what lies between them is a hole that reads as zeros.
struct Extent {
  std::uint32_t file_block = 0;    // offset in the value, in blocks
  std::uint32_t size_bytes = 0;    // 1 to kExtentSizeBytesMax
  std::uint32_t device_block = 0;  // offset on the device, in blocks
  std::uint64_t stamp = 0;         // unique per write; seeds the checksum with the object id
  std::uint64_t checksum = 0;
  bool operator==(const Extent&) const = default;
};

enum class Durability : std::uint8_t {
  kWritten,  // visible to readers; survives a crash once something is flushed after it
  kDurable,  // survives power loss when the call returns
};

}  // namespace kvslot
