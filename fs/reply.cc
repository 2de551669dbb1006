// Builds replies.
#include "fs/reply.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "fs/text.h"

namespace kvslot {

namespace {

constexpr double kCacheSeconds = 3600;  // every change goes through the kernel
constexpr std::uint64_t kDirectorySizeBytes = 4096;
constexpr std::size_t kPiecesMax = 512;  // of one reply

timespec to_timespec(TimestampNs time_ns) {
  constexpr std::int64_t kNsPerSecond = 1'000'000'000;
  std::int64_t seconds = time_ns / kNsPerSecond;
  std::int64_t rest = time_ns % kNsPerSecond;
  if (rest < 0) {
    rest += kNsPerSecond;
    --seconds;
  }
  return {.tv_sec = seconds, .tv_nsec = rest};
}

mode_t type_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::kFile:
      return S_IFREG;
    case NodeKind::kDirectory:
      return S_IFDIR;
    case NodeKind::kSymlink:
      return S_IFLNK;
  }
  return S_IFREG;
}

nlink_t links_of(const NodeInfo& info) {
  if (!info.linked) return 0;
  return info.kind == NodeKind::kDirectory ? 2 + info.subdirectory_count : 1;
}

}  // namespace

Caller caller_of(const Request& request) {
  const fuse_ctx* const context = fuse_req_ctx(request.raw());
  return {.uid = context->uid, .gid = context->gid};
}

struct stat to_stat(const MountOptions& options, const FileStatus& status) {
  const NodeInfo& info = status.info;
  struct stat result{};
  result.st_ino = static_cast<ino_t>(info.id);
  result.st_mode = type_of(info.kind) | info.attributes.mode;
  if (options.umask && info.kind != NodeKind::kSymlink) result.st_mode &= ~(*options.umask & 0777);
  result.st_nlink = links_of(info);
  result.st_uid = options.uid.value_or(info.attributes.uid);
  result.st_gid = options.gid.value_or(info.attributes.gid);
  const std::uint64_t size =
      info.kind == NodeKind::kDirectory ? kDirectorySizeBytes : info.size_bytes;
  result.st_size = static_cast<off_t>(size);
  result.st_blksize = kBlockSizeBytes;
  result.st_blocks = static_cast<blkcnt_t>(status.allocated_bytes / 512);
  result.st_atim = to_timespec(info.attributes.atime_ns);
  result.st_mtim = to_timespec(info.attributes.mtime_ns);
  result.st_ctim = to_timespec(info.attributes.ctime_ns);
  return result;
}

struct stat to_stat(const PseudoNode& node) {
  struct stat result{};
  result.st_ino = node.node;
  result.st_mode = (node.is_directory ? S_IFDIR : S_IFREG) | node.mode;
  result.st_nlink = node.is_directory ? 2 : 1;
  result.st_uid = ::geteuid();
  result.st_gid = ::getegid();
  result.st_size = static_cast<off_t>(node.size_bytes);
  result.st_blksize = kBlockSizeBytes;
  result.st_blocks = static_cast<blkcnt_t>((node.size_bytes + 511) / 512);
  result.st_atim = result.st_mtim = result.st_ctim = to_timespec(wall_clock_ns());
  return result;
}

double attribute_timeout(const FileStatus& status) {
  // A write takes suid and sgid away here, and the kernel does not look at the mode again for it.
  const bool may_lose_bits = status.info.kind == NodeKind::kFile &&
                             (status.info.attributes.mode & (S_ISUID | S_ISGID)) != 0;
  return status.is_settled && !may_lose_bits ? kCacheSeconds : 0;
}

fuse_entry_param to_entry(const MountOptions& options, const FileStatus& status) {
  fuse_entry_param entry{};
  entry.ino = static_cast<fuse_ino_t>(status.info.node);
  entry.attr = to_stat(options, status);
  entry.attr_timeout = attribute_timeout(status);
  entry.entry_timeout = kCacheSeconds;
  return entry;
}

fuse_entry_param to_entry(const PseudoNode& node) {
  fuse_entry_param entry{};
  entry.ino = node.node;
  entry.attr = to_stat(node);
  return entry;
}

void reply_error(const Request& request, const Error& error) {
  request.answer(fuse_reply_err, to_errno(error));
}

void reply_result(const Request& request, const Result<void>& result) {
  request.answer(fuse_reply_err, result ? 0 : to_errno(result.error()));
}

void reply_status(const Request& request, const FileStatus& status) {
  const struct stat attributes = to_stat(filesystem(request).options(), status);
  request.answer(fuse_reply_attr, &attributes, attribute_timeout(status));
}

void reply_entry(const Request& request, const FileStatus& status) {
  Filesystem& target = filesystem(request);
  const fuse_entry_param entry = to_entry(target.options(), status);
  if (request.answer(fuse_reply_entry, &entry) != 0) target.forget(status.info.node, 1);
}

void reply_view(const Request& request, const ReadView& view) {
  if (view.pieces.empty()) {
    request.answer(fuse_reply_buf, nullptr, 0);
    return;
  }
  if (view.pieces.size() <= kPiecesMax) {
    request.answer(fuse_reply_iov, view.pieces.data(), static_cast<int>(view.pieces.size()));
    return;
  }
  std::vector<char> flat;
  flat.reserve(view.size_bytes);
  for (const iovec& piece : view.pieces) {
    const auto* const data = static_cast<const char*>(piece.iov_base);
    flat.insert(flat.end(), data, data + piece.iov_len);
  }
  request.answer(fuse_reply_buf, flat.data(), flat.size());
}

Done replier(const Request& request) {
  return [request](Result<void> result) { reply_result(request, result); };
}

}  // namespace kvslot
