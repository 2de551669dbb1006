// Callbacks for names and attributes. Files: operations_files.cc; directories:
// operations_directories.cc; the control directory: operations_pseudo.cc.
#include "fs/operations.h"

#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cerrno>
#include <climits>
#include <string>
#include <utility>

#include "fs/recorded_call.h"
#include "fs/reply.h"
#include "fs/text.h"

namespace kvslot {

namespace {

constexpr double kNegativeSeconds = 3600;
constexpr unsigned kReadaheadBytesMax = 8 << 20;
constexpr unsigned kBackgroundMax = 256;  // read-ahead and O_DIRECT requests at a time

void op_init(void* user_data, fuse_conn_info* connection) {
  auto& context = *static_cast<MountContext*>(user_data);
  connection->max_write = kRequestBytesMax;
  connection->max_read = kRequestBytesMax;
  connection->max_readahead = kReadaheadBytesMax;
  connection->max_background = kBackgroundMax;
  connection->congestion_threshold = kBackgroundMax * 3 / 4;
  connection->time_gran = 1;
  for (const std::uint64_t flag :
       {std::uint64_t{FUSE_CAP_ASYNC_READ}, std::uint64_t{FUSE_CAP_ATOMIC_O_TRUNC},
        std::uint64_t{FUSE_CAP_ASYNC_DIO}, std::uint64_t{FUSE_CAP_PARALLEL_DIROPS},
        std::uint64_t{FUSE_CAP_CACHE_SYMLINKS}, std::uint64_t{FUSE_CAP_EXPLICIT_INVAL_DATA}}) {
    wants(*connection, flag);
  }
  // We are the only writer: what the kernel cached stays right whatever the times say.
  refuses(*connection, FUSE_CAP_AUTO_INVAL_DATA);
  for (const std::uint64_t flag :
       {std::uint64_t{FUSE_CAP_SPLICE_READ}, std::uint64_t{FUSE_CAP_SPLICE_WRITE},
        std::uint64_t{FUSE_CAP_SPLICE_MOVE}}) {
    refuses(*connection, flag);
  }
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 18)
  context.has_killpriv_v2 = wants(*connection, FUSE_CAP_HANDLE_KILLPRIV_V2);
  wants(*connection, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
#endif
  const ReaddirPlus plus = context.filesystem->options().readdirplus;
  if (plus == ReaddirPlus::kNo) refuses(*connection, FUSE_CAP_READDIRPLUS);
  if (plus != ReaddirPlus::kAuto) refuses(*connection, FUSE_CAP_READDIRPLUS_AUTO);
}

void op_destroy(void* user_data) {
  const auto& context = *static_cast<MountContext*>(user_data);
  if (context.on_destroy) context.on_destroy();
}

// ---- Names

void op_lookup(const Request& request, fuse_ino_t parent, const char* name) {
  MountContext& context = context_of(request);
  if (is_pseudo(parent)) return pseudo_lookup(request, parent, name);
  if (Filesystem::is_control_name(node_id(parent), name) &&
      context.filesystem->options().control != ControlDirectory::kNone) {
    return pseudo_lookup_control(request);
  }
  const auto status = context.filesystem->lookup(node_id(parent), name);
  if (status) return reply_entry(request, *status);
  if (status.error().code != Errc::kNotFound) return reply_error(request, status.error());
  fuse_entry_param missing{};  // the kernel may remember that there is no such name
  missing.entry_timeout = kNegativeSeconds;
  request.answer(fuse_reply_entry, &missing);
}

void op_forget(const Request& request, fuse_ino_t node, std::uint64_t count) {
  if (!is_pseudo(node)) filesystem(request).forget(node_id(node), count);
  request.answer(fuse_reply_none);
}

void op_forget_multi(const Request& request, std::size_t count, fuse_forget_data* forgets) {
  Filesystem& target = filesystem(request);
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_pseudo(forgets[i].ino)) target.forget(node_id(forgets[i].ino), forgets[i].nlookup);
  }
  request.answer(fuse_reply_none);
}

// Answers with the new entry once that may be done.
Done entry_replier(const Request& request, const FileStatus& status) {
  return [request, status](const Result<void>& settled) {
    if (settled) return reply_entry(request, status);
    filesystem(request).forget(status.info.node, 1);
    reply_error(request, settled.error());
  };
}

void make_node(const Request& request, fuse_ino_t parent, const char* name, NodeKind kind,
               mode_t mode, const char* target = "") {
  if (is_pseudo(parent)) {
    request.answer(fuse_reply_err, EPERM);
    return;
  }
  const auto status =
      filesystem(request).make(node_id(parent), name, kind, mode, caller_of(request), target);
  if (!status) return reply_error(request, status.error());
  filesystem(request).settle_names(entry_replier(request, *status));
}

void op_mknod(const Request& request, fuse_ino_t parent, const char* name, mode_t mode, dev_t) {
  if ((mode & S_IFMT) != 0 && !S_ISREG(mode)) {
    request.answer(fuse_reply_err, EPERM);
    return;
  }
  if (is_pseudo(parent)) {
    request.answer(fuse_reply_err, EPERM);
    return;
  }
  Filesystem& target = filesystem(request);
  const auto status = target.make(node_id(parent), name, NodeKind::kFile, mode, caller_of(request));
  if (!status) return reply_error(request, status.error());
  target.commit(status->info.node, entry_replier(request, *status));  // no close will come
}

void op_mkdir(const Request& request, fuse_ino_t parent, const char* name, mode_t mode) {
  make_node(request, parent, name, NodeKind::kDirectory, mode);
}

void op_symlink(const Request& request, const char* target, fuse_ino_t parent, const char* name) {
  make_node(request, parent, name, NodeKind::kSymlink, 0777, target);
}

void remove_node(const Request& request, fuse_ino_t parent, const char* name, RemoveKind kind) {
  if (is_pseudo(parent)) {
    request.answer(fuse_reply_err, EPERM);
    return;
  }
  const auto removed = filesystem(request).remove(node_id(parent), name, kind);
  if (!removed) return reply_error(request, removed.error());
  filesystem(request).settle_names(replier(request));
}

void op_unlink(const Request& request, fuse_ino_t parent, const char* name) {
  remove_node(request, parent, name, RemoveKind::kNotDirectory);
}

void op_rmdir(const Request& request, fuse_ino_t parent, const char* name) {
  remove_node(request, parent, name, RemoveKind::kDirectory);
}

void op_rename(const Request& request, fuse_ino_t from, const char* from_name, fuse_ino_t to,
               const char* to_name, unsigned flags) {
  if (is_pseudo(from) || is_pseudo(to)) {
    request.answer(fuse_reply_err, EPERM);
    return;
  }
  RenameMode mode = RenameMode::kReplace;
  if (flags == RENAME_NOREPLACE)
    mode = RenameMode::kNoReplace;
  else if (flags == RENAME_EXCHANGE)
    mode = RenameMode::kExchange;
  else if (flags != 0) {
    request.answer(fuse_reply_err, EINVAL);
    return;
  }
  filesystem(request).rename(node_id(from), from_name, node_id(to), to_name, mode,
                             replier(request));
}

void op_link(const Request& request, fuse_ino_t, fuse_ino_t, const char*) {
  request.answer(fuse_reply_err, EPERM);  // programs fall back to a copy or a symlink
}

void op_readlink(const Request& request, fuse_ino_t node) {
  if (is_pseudo(node)) {
    request.answer(fuse_reply_err, EINVAL);
    return;
  }
  const auto target = filesystem(request).volume().symlink_target(node_id(node));
  if (!target) return reply_error(request, target.error());
  request.answer(fuse_reply_readlink, target->c_str());
}

// ---- Attributes

void op_getattr(const Request& request, fuse_ino_t node, fuse_file_info*) {
  if (is_pseudo(node)) return pseudo_getattr(request, node);
  Filesystem& target = filesystem(request);
  ++target.counters().getattrs;
  const auto status = target.status(node_id(node));
  if (!status) return reply_error(request, status.error());
  reply_status(request, *status);
}

void op_setattr(const Request& request, fuse_ino_t node, struct stat* attributes, int to_set,
                fuse_file_info* info) {
  if (is_pseudo(node)) return pseudo_setattr(request, node, to_set);
  StatusChange change;
  if ((to_set & FUSE_SET_ATTR_SIZE) != 0) {
    if (attributes->st_size < 0) {
      request.answer(fuse_reply_err, EINVAL);
      return;
    }
    change.size_bytes = static_cast<std::uint64_t>(attributes->st_size);
    // With KILLPRIV_V2 the bit says that the caller may not keep suid and sgid.
    constexpr int kKillPrivileges = 1 << 11;
    change.clears_privileges =
        context_of(request).has_killpriv_v2 && (to_set & kKillPrivileges) != 0;
    change.through_writer = info != nullptr && handle_of(info).writes;
  }
  AttributeChange& changes = change.attributes;
  const TimestampNs now = wall_clock_ns();
  if ((to_set & FUSE_SET_ATTR_MODE) != 0) changes.mode = attributes->st_mode & 07777;
  if ((to_set & FUSE_SET_ATTR_UID) != 0) changes.uid = attributes->st_uid;
  if ((to_set & FUSE_SET_ATTR_GID) != 0) changes.gid = attributes->st_gid;
  if ((to_set & FUSE_SET_ATTR_ATIME) != 0) changes.atime_ns = to_timestamp(attributes->st_atim);
  if ((to_set & FUSE_SET_ATTR_MTIME) != 0) changes.mtime_ns = to_timestamp(attributes->st_mtim);
  if ((to_set & FUSE_SET_ATTR_ATIME_NOW) != 0) changes.atime_ns = now;
  if ((to_set & FUSE_SET_ATTR_MTIME_NOW) != 0) changes.mtime_ns = now;
  Filesystem& target = filesystem(request);
  const bool resizes = change.size_bytes.has_value();
  const auto status = target.change_status(node_id(node), std::move(change));
  if (!status) return reply_error(request, status.error());
  auto answer = [request, status = *status](const Result<void>& settled) {
    if (!settled) return reply_error(request, settled.error());
    reply_status(request, status);
  };
  if (resizes)
    target.settle_size(node_id(node), std::move(answer));
  else
    target.settle_names(std::move(answer));
}

void op_statfs(const Request& request, fuse_ino_t) {
  if (is_over_uring(request.raw())) context_of(request).is_uring = true;
  Filesystem& target = filesystem(request);
  ++target.counters().statfs;
  const SpaceInfo space = target.volume().space();
  struct statvfs result{};
  result.f_bsize = result.f_frsize = kBlockSizeBytes;
  result.f_blocks = space.total_blocks;
  result.f_bfree = result.f_bavail = space.free_blocks;
  result.f_files = space.nodes + space.nodes_free;
  result.f_ffree = result.f_favail = space.nodes_free;
  result.f_namemax = kNameSizeBytesMax;
  request.answer(fuse_reply_statfs, &result);
}

void reply_text(const Request& request, const std::string& text, std::size_t size) {
  if (size == 0)
    request.answer(fuse_reply_xattr, text.size());
  else if (size < text.size())
    request.answer(fuse_reply_err, ERANGE);
  else
    request.answer(fuse_reply_buf, text.data(), text.size());
}

void op_getxattr(const Request& request, fuse_ino_t node, const char* name, std::size_t size) {
  if (is_pseudo(node)) {
    request.answer(fuse_reply_err, ENODATA);
    return;
  }
  const auto value = filesystem(request).xattr(node_id(node), name);
  if (!value) return reply_error(request, value.error());
  reply_text(request, *value, size);
}

void op_setxattr(const Request& request, fuse_ino_t node, const char* name, std::string_view value,
                 int flags) {
  if (is_pseudo(node)) {
    request.answer(fuse_reply_err, EPERM);
    return;
  }
  auto mode = Volume::XattrMode::kAny;
  if ((flags & XATTR_REPLACE) != 0) mode = Volume::XattrMode::kReplace;
  if ((flags & XATTR_CREATE) != 0) mode = Volume::XattrMode::kCreate;
  if ((flags & XATTR_CREATE) != 0 && (flags & XATTR_REPLACE) != 0) {  // it can only fail
    const auto there = filesystem(request).xattr(node_id(node), name);
    if (!there) return reply_error(request, there.error());
  }
  reply_result(request, filesystem(request).set_xattr(node_id(node), name, value, mode));
}

void setxattr_callback(fuse_req_t raw, fuse_ino_t node, const char* name, const char* value,
                       std::size_t size, int flags) {
  const Request request(raw);
  const MountContext& context = context_of(request);
  run_recorded<op_setxattr>(context.filesystem->volume(), *context.reader_pool, request, node, name,
                            std::string_view(value, size), flags);
}

void op_listxattr(const Request& request, fuse_ino_t node, std::size_t size) {
  std::string names;
  if (!is_pseudo(node)) {
    const auto list = filesystem(request).volume().list_xattrs(node_id(node));
    if (!list) return reply_error(request, list.error());
    for (const std::string& name : *list) names.append(name).push_back('\0');
  }
  reply_text(request, names, size);
}

void op_removexattr(const Request& request, fuse_ino_t node, const char* name) {
  if (is_pseudo(node)) {
    request.answer(fuse_reply_err, EPERM);
    return;
  }
  reply_result(request, filesystem(request).remove_xattr(node_id(node), name));
}

fuse_lowlevel_ops make_operations() {
  fuse_lowlevel_ops operations{};
  operations.init = op_init;
  operations.destroy = op_destroy;
  operations.lookup = kCallback<op_lookup>;
  operations.forget = kCallback<op_forget>;
  operations.forget_multi = kCallback<op_forget_multi>;
  operations.mknod = kRecordedCallback<op_mknod>;
  operations.mkdir = kRecordedCallback<op_mkdir>;
  operations.symlink = kRecordedCallback<op_symlink>;
  operations.unlink = kRecordedCallback<op_unlink>;
  operations.rmdir = kRecordedCallback<op_rmdir>;
  operations.rename = kRecordedCallback<op_rename>;
  operations.link = kCallback<op_link>;
  operations.readlink = kCallback<op_readlink>;
  operations.getattr = kCallback<op_getattr>;
  operations.setattr = kRecordedCallback<op_setattr>;
  operations.statfs = kCallback<op_statfs>;
  operations.getxattr = kCallback<op_getxattr>;
  operations.setxattr = setxattr_callback;
  operations.listxattr = kCallback<op_listxattr>;
  operations.removexattr = kRecordedCallback<op_removexattr>;
  fill_file_operations(operations);
  fill_directory_operations(operations);
  return operations;
}

}  // namespace

const fuse_lowlevel_ops& fuse_operations() {
  static const fuse_lowlevel_ops kOperations = make_operations();
  return kOperations;
}

}  // namespace kvslot
