// Callbacks for open directories. A directory stream has no state here: the cookie is the entry.
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "fs/entry_buffer.h"
#include "fs/reply.h"

namespace kvslot {

namespace {

constexpr std::size_t kEntriesAtATime = 64;

struct stat brief_stat(std::uint64_t inode, mode_t type) {
  struct stat result{};
  result.st_ino = inode;
  result.st_mode = type;
  return result;
}

mode_t type_of(NodeKind kind) {
  if (kind == NodeKind::kDirectory) return S_IFDIR;
  return kind == NodeKind::kSymlink ? S_IFLNK : S_IFREG;
}

// `.`, `..` and a visible control directory. False: the buffer is full.
Result<bool> add_dots(const Request& request, NodeId directory, off_t offset,
                      EntryBuffer& entries) {
  Filesystem& target = filesystem(request);
  if (offset < kCookieOfDot) {
    const auto self = target.volume().stat(directory);
    if (!self) return fail(self);
    if (!entries.add(".", brief_stat(std::to_underlying(self->id), S_IFDIR), kCookieOfDot))
      return false;
  }
  if (offset < kCookieOfDotDot) {
    const auto self = target.volume().stat(directory);
    if (!self) return fail(self);
    const auto parent =
        target.volume().stat(self->parent == NodeId::kNone ? directory : self->parent);
    if (!parent) return fail(parent);
    if (!entries.add("..", brief_stat(std::to_underlying(parent->id), S_IFDIR), kCookieOfDotDot))
      return false;
  }
  const bool shows_control =
      directory == NodeId::kRoot && target.options().control == ControlDirectory::kVisible;
  if (offset < kCookieOfControl && shows_control) {
    return entries.add(kControlDirectoryName, brief_stat(kControlDirectoryNode, S_IFDIR),
                       kCookieOfControl);
  }
  return true;
}

// False: the buffer is full. An entry that went since it was listed is left out.
bool add_entry(const Request& request, NodeId directory, const DirectoryEntry& entry, bool is_plus,
               EntryBuffer& entries) {
  const off_t cookie = static_cast<off_t>(entry.cookie) + kCookieOfControl;
  if (!is_plus) {
    return entries.add(entry.name, brief_stat(std::to_underlying(entry.id), type_of(entry.kind)),
                       cookie);
  }
  Filesystem& target = filesystem(request);
  const auto status = target.lookup(directory, entry.name);  // holds the node
  if (!status) return true;
  if (entries.add(entry.name, to_entry(target.options(), *status), cookie)) return true;
  target.forget(status->info.node, 1);
  return false;
}

void read_directory(const Request& request, fuse_ino_t node, std::size_t size, off_t offset,
                    bool is_plus) {
  if (is_pseudo(node)) return pseudo_readdir(request, node, size, offset, is_plus);
  Filesystem& target = filesystem(request);
  ++target.counters().readdirs;
  const NodeId directory = node_id(node);
  EntryBuffer entries(request, size, is_plus);
  const auto has_room = add_dots(request, directory, offset, entries);
  if (!has_room) return reply_error(request, has_room.error());
  std::uint64_t cookie =
      offset > kCookieOfControl ? static_cast<std::uint64_t>(offset - kCookieOfControl) : 0;
  for (bool goes_on = *has_room; goes_on;) {
    const auto batch = target.list(directory, cookie, kEntriesAtATime);
    if (!batch) {
      if (entries.is_empty()) return reply_error(request, batch.error());
      break;
    }
    if (batch->empty()) break;
    for (const DirectoryEntry& entry : *batch) {
      goes_on = add_entry(request, directory, entry, is_plus, entries);
      if (!goes_on) break;
      cookie = entry.cookie;
    }
  }
  entries.reply();
}

void op_readdir(const Request& request, fuse_ino_t node, std::size_t size, off_t offset,
                fuse_file_info*) {
  read_directory(request, node, size, offset, false);
}

void op_readdirplus(const Request& request, fuse_ino_t node, std::size_t size, off_t offset,
                    fuse_file_info*) {
  read_directory(request, node, size, offset, true);
}

void op_opendir(const Request& request, fuse_ino_t, fuse_file_info* info) {
  request.answer(fuse_reply_open, info);
}

void op_releasedir(const Request& request, fuse_ino_t, fuse_file_info*) {
  request.answer(fuse_reply_err, 0);
}

void op_fsyncdir(const Request& request, fuse_ino_t node, int, fuse_file_info*) {
  if (is_pseudo(node)) {
    request.answer(fuse_reply_err, 0);
    return;
  }
  Filesystem& target = filesystem(request);
  ++target.counters().fsyncs;
  target.sync_all(replier(request));
}

}  // namespace

void fill_directory_operations(fuse_lowlevel_ops& operations) {
  operations.opendir = kCallback<op_opendir>;
  operations.readdir = kCallback<op_readdir>;
  operations.readdirplus = kCallback<op_readdirplus>;
  operations.releasedir = kCallback<op_releasedir>;
  operations.fsyncdir = kCallback<op_fsyncdir>;
}

}  // namespace kvslot
