// What callers of fs/filesystem say of themselves and of what they want, and what they are shown.
// Holds no libfuse types.
#pragma once

#include <kvslot/volume.h>
#include <time.h>

#include <cstdint>
#include <optional>

namespace kvslot {

struct Caller {
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
};

// What stat(2) shows.
struct FileStatus {
  NodeInfo info;  // size and times as the live view has them
  std::uint64_t allocated_bytes = 0;
  bool is_settled = true;  // false: a commit may still change the allocation
};

struct StatusChange {
  std::optional<std::uint64_t> size_bytes;
  AttributeChange attributes;
  bool clears_privileges = false;  // the caller may not keep suid and sgid over a size change
  bool through_writer = false;     // with ftruncate, by somebody who may write the file
};

struct OpenMode {
  bool reads = true;
  bool writes = false;
  bool truncates = false;
  // What is copied to it or reserved in it is durable before that is answered. Of writes the kernel
  // takes care, or WriteMode says so.
  bool syncs = false;
  bool clears_privileges = false;
};

struct WriteMode {
  bool clears_privileges = false;  // the caller may not keep suid and sgid over it
  bool syncs = false;              // it is durable before it is answered
  bool keeps_bytes = false;        // they stay valid until the answer, whoever gives it
};

// Copies what was read, and zeros behind it.
void copy_view(const ReadView& view, Bytes target);

// The mode after a write by somebody who may not keep suid and sgid over one.
[[nodiscard]] std::uint32_t without_privileges(std::uint32_t mode);

// The nearest time that can be stored.
[[nodiscard]] TimestampNs to_timestamp(const timespec& time);

}  // namespace kvslot
