// Callbacks for open files.
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <memory>
#include <utility>

#include "fs/recorded_call.h"
#include "fs/reply.h"

namespace kvslot {

namespace {

OpenMode open_mode(const Request& request, const fuse_file_info& info) {
  const int access = info.flags & O_ACCMODE;
  OpenMode mode{.reads = access != O_WRONLY, .writes = access != O_RDONLY};
  mode.truncates = (info.flags & O_TRUNC) != 0;
  mode.syncs = (info.flags & (O_SYNC | O_DSYNC)) != 0;
  mode.clears_privileges =
      context_of(request).has_killpriv_v2 ? clears_privileges(info) : caller_of(request).uid != 0;
  return mode;
}

void fill_open_reply(const Request& request, fuse_file_info& info,
                     std::unique_ptr<OpenFile> handle) {
  info.keep_cache = filesystem(request).files().take_stale(handle->file->node) ? 0 : 1;
  info.noflush = handle->writes ? 0 : 1;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 15)
  info.parallel_direct_writes = 1;
#endif
  info.fh = reinterpret_cast<std::uint64_t>(handle.release());
}

// Where the kernel leaves suid and sgid to us and its request does not say whether the caller may
// keep them.
void drop_privileges(const Request& request, const OpenFile& handle) {
  if (context_of(request).has_killpriv_v2 && caller_of(request).uid != 0) {
    filesystem(request).drop_privileges(handle);
  }
}

void take_back(Filesystem& target, const fuse_file_info& info) {
  target.release(std::unique_ptr<OpenFile>(reinterpret_cast<OpenFile*>(info.fh)));
}

void op_open(const Request& request, fuse_ino_t node, fuse_file_info* info) {
  if (is_pseudo(node)) return pseudo_open(request, node, *info);
  Filesystem& target = filesystem(request);
  auto handle = target.open(node_id(node), open_mode(request, *info));
  if (!handle) return reply_error(request, handle.error());
  fill_open_reply(request, *info, std::move(*handle));
  if (request.answer(fuse_reply_open, info) != 0) take_back(target, *info);
}

void open_callback(fuse_req_t raw, fuse_ino_t node, fuse_file_info* info) {
  const bool is_recorded = (info->flags & O_TRUNC) != 0;
  (is_recorded ? kRecordedCallback<op_open> : kCallback<op_open>)(raw, node, info);
}

Result<FileStatus> make_or_find(const Request& request, fuse_ino_t parent, const char* name,
                                mode_t mode, const fuse_file_info& info) {
  Filesystem& target = filesystem(request);
  auto status = target.make(node_id(parent), name, NodeKind::kFile, mode, caller_of(request));
  const bool may_exist =
      (info.flags & O_EXCL) == 0 && !Filesystem::is_control_name(node_id(parent), name);
  if (status || status.error().code != Errc::kExists || !may_exist) return status;
  return target.lookup(node_id(parent), name);  // somebody made it since the kernel looked
}

void op_create(const Request& request, fuse_ino_t parent, const char* name, mode_t mode,
               fuse_file_info* info) {
  if (is_pseudo(parent)) {
    request.answer(fuse_reply_err, EPERM);
    return;
  }
  Filesystem& target = filesystem(request);
  const auto status = make_or_find(request, parent, name, mode, *info);
  if (!status) return reply_error(request, status.error());
  auto handle = target.open(status->info.node, open_mode(request, *info));
  if (!handle) {
    target.forget(status->info.node, 1);
    return reply_error(request, handle.error());
  }
  fill_open_reply(request, *info, std::move(*handle));
  const fuse_entry_param entry = to_entry(target.options(), *status);
  if (request.answer(fuse_reply_create, &entry, info) != 0) {
    take_back(target, *info);
    target.forget(status->info.node, 1);
  }
}

void op_read(const Request& request, fuse_ino_t node, std::size_t size, off_t offset,
             fuse_file_info* info) {
  if (is_pseudo(node)) return pseudo_read(request, size, offset, *info);
  filesystem(request).read(handle_of(info), static_cast<std::uint64_t>(offset), size,
                           [request](Result<ReadView> view) {
                             if (!view) return reply_error(request, view.error());
                             reply_view(request, *view);
                           });
}

void op_write(const Request& request, fuse_ino_t node, const char* data, std::size_t size,
              off_t offset, fuse_file_info* info) {
  if (is_pseudo(node)) return pseudo_write(request, {data, size}, *info);
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(data), size);
  // The kernel follows a synchronous write with FSYNC; an older one not when it is direct.
  const bool syncs = (info->flags & O_DIRECT) != 0 && (info->flags & (O_SYNC | O_DSYNC)) != 0;
  filesystem(request).write(handle_of(info), static_cast<std::uint64_t>(offset), bytes,
                            {.clears_privileges = clears_privileges(*info),
                             .syncs = syncs,
                             .keeps_bytes = is_over_uring(request.raw())},  // in its ring's entry
                            [request, size](Result<void> result) {
                              if (!result) return reply_error(request, result.error());
                              request.answer(fuse_reply_write, size);
                            });
}

void op_flush(const Request& request, fuse_ino_t node, fuse_file_info* info) {
  if (is_pseudo(node)) {
    request.answer(fuse_reply_err, 0);
    return;
  }
  filesystem(request).flush(handle_of(info), replier(request));
}

void op_release(const Request& request, fuse_ino_t node, fuse_file_info* info) {
  if (is_pseudo(node)) return pseudo_release(request, *info);
  take_back(filesystem(request), *info);
  request.answer(fuse_reply_err, 0);
}

void op_fsync(const Request& request, fuse_ino_t node, int, fuse_file_info* info) {
  if (is_pseudo(node)) {
    request.answer(fuse_reply_err, 0);
    return;
  }
  filesystem(request).fsync(handle_of(info), replier(request));
}

void op_fallocate(const Request& request, fuse_ino_t node, int mode, off_t offset, off_t length,
                  fuse_file_info* info) {
  using Allocate = Filesystem::Allocate;
  Allocate what{};
  switch (mode) {
    case 0:
      what = Allocate::kReserve;
      break;
    case FALLOC_FL_KEEP_SIZE:
      what = Allocate::kReserveKeepSize;
      break;
    case FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE:
      what = Allocate::kPunchHole;
      break;
    case FALLOC_FL_ZERO_RANGE:
      what = Allocate::kZero;
      break;
    case FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE:
      what = Allocate::kZeroKeepSize;
      break;
    default:
      request.answer(fuse_reply_err, EOPNOTSUPP);
      return;
  }
  if (is_pseudo(node) || offset < 0 || length <= 0) {
    request.answer(fuse_reply_err, is_pseudo(node) ? EOPNOTSUPP : EINVAL);
    return;
  }
  drop_privileges(request, handle_of(info));
  filesystem(request).allocate(handle_of(info), what, static_cast<std::uint64_t>(offset),
                               static_cast<std::uint64_t>(length), replier(request));
}

void op_lseek(const Request& request, fuse_ino_t node, off_t offset, int whence,
              fuse_file_info* info) {
  if (is_pseudo(node) || (whence != SEEK_DATA && whence != SEEK_HOLE)) {
    request.answer(fuse_reply_err, EINVAL);
    return;
  }
  if (offset < 0) {
    request.answer(fuse_reply_err, ENXIO);
    return;
  }
  const auto found = filesystem(request).seek(handle_of(info), static_cast<std::uint64_t>(offset),
                                              whence == SEEK_DATA);
  if (!found) return reply_error(request, found.error());
  request.answer(fuse_reply_lseek, static_cast<off_t>(*found));
}

void op_copy_file_range(const Request& request, fuse_ino_t from, off_t from_offset,
                        fuse_file_info* from_info, fuse_ino_t to, off_t to_offset,
                        fuse_file_info* to_info, std::size_t size, int flags) {
  if (is_pseudo(from) || is_pseudo(to)) {
    request.answer(fuse_reply_err, EXDEV);  // the kernel then reads and writes
    return;
  }
  if (flags != 0 || from_offset < 0 || to_offset < 0) {
    request.answer(fuse_reply_err, EINVAL);
    return;
  }
  drop_privileges(request, handle_of(to_info));
  filesystem(request).copy(handle_of(from_info), static_cast<std::uint64_t>(from_offset),
                           handle_of(to_info), static_cast<std::uint64_t>(to_offset), size,
                           [request](Result<std::uint64_t> copied) {
                             if (!copied) return reply_error(request, copied.error());
                             request.answer(fuse_reply_write, *copied);
                           });
}

void op_ioctl(const Request& request, fuse_ino_t, unsigned, void*, fuse_file_info*, unsigned,
              const void*, std::size_t, std::size_t) {
  request.answer(fuse_reply_err, ENOTTY);
}

void op_bmap(const Request& request, fuse_ino_t, std::size_t, std::uint64_t) {
  request.answer(fuse_reply_err, EINVAL);
}

}  // namespace

void fill_file_operations(fuse_lowlevel_ops& operations) {
  operations.open = open_callback;
  operations.create = kRecordedCallback<op_create>;
  operations.read = kCallback<op_read>;
  operations.write = kCallback<op_write>;
  operations.flush = kCallback<op_flush>;
  operations.release = kCallback<op_release>;
  operations.fsync = kCallback<op_fsync>;
  operations.fallocate = kRecordedCallback<op_fallocate>;
  operations.lseek = kCallback<op_lseek>;
  operations.copy_file_range = kCallback<op_copy_file_range>;
  operations.ioctl = kCallback<op_ioctl>;
  operations.bmap = kCallback<op_bmap>;
}

}  // namespace kvslot
