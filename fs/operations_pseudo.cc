// Callbacks for the control directory. What may take time runs on a pool of its own, so that the
// pseudo-files can be read while readers of the device hang.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "fs/entry_buffer.h"
#include "fs/reply.h"

namespace kvslot {

namespace {

constexpr std::size_t kEntriesAtATime = 64;

struct PseudoOpen {
  Mutex mutex;  // a handle serves one thread at a time
  std::unique_ptr<PseudoHandle> handle GUARDED_BY(mutex);
  bool waits_for_device = false;
};

using PseudoOpenRef = std::shared_ptr<PseudoOpen>;

// A handle's number is a pointer to a shared one: a read may outlive the release.
PseudoOpenRef* reference_of(const fuse_file_info& info) {
  return reinterpret_cast<PseudoOpenRef*>(info.fh);
}

}  // namespace

void pseudo_lookup(const Request& request, fuse_ino_t parent, std::string_view name) {
  const auto node = context_of(request).pseudo_tree->lookup(parent, name);
  if (!node) return reply_error(request, node.error());
  const fuse_entry_param entry = to_entry(*node);
  request.answer(fuse_reply_entry, &entry);
}

void pseudo_lookup_control(const Request& request) {
  const auto node = context_of(request).pseudo_tree->stat(kControlDirectoryNode);
  if (!node) return reply_error(request, node.error());
  const fuse_entry_param entry = to_entry(*node);
  request.answer(fuse_reply_entry, &entry);
}

void pseudo_getattr(const Request& request, fuse_ino_t node) {
  const auto found = context_of(request).pseudo_tree->stat(node);
  if (!found) return reply_error(request, found.error());
  const struct stat attributes = to_stat(*found);
  request.answer(fuse_reply_attr, &attributes, 0);
}

void pseudo_setattr(const Request& request, fuse_ino_t node, int to_set) {
  constexpr int kHarmless = FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_MTIME_NOW | FUSE_SET_ATTR_MTIME;
  const auto found = context_of(request).pseudo_tree->stat(node);
  if (!found) return reply_error(request, found.error());
  const bool is_writable = (found->mode & 0222) != 0;
  // `echo 1 > checkpoint` cuts before it writes; nothing else may change.
  if (!is_writable || (to_set & FUSE_SET_ATTR_SIZE) == 0 ||
      (to_set & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID) & ~kHarmless) != 0) {
    request.answer(fuse_reply_err, EPERM);
    return;
  }
  pseudo_getattr(request, node);
}

void pseudo_open(const Request& request, fuse_ino_t node, const fuse_file_info& info) {
  MountContext& context = context_of(request);
  context.pseudo_pool->run([request, node, info = fuse_file_info(info), &context]() mutable {
    const bool for_writing = (info.flags & O_ACCMODE) != O_RDONLY;
    auto handle = context.pseudo_tree->open(node, for_writing);
    if (!handle) return reply_error(request, handle.error());
    auto open = std::make_shared<PseudoOpen>();
    open->waits_for_device = (*handle)->waits_for_device();
    {
      MutexLock lock(open->mutex);
      open->handle = std::move(*handle);
    }
    info.direct_io = 1;
    auto* const reference = new PseudoOpenRef(std::move(open));
    info.fh = reinterpret_cast<std::uint64_t>(reference);
    if (request.answer(fuse_reply_open, &info) != 0) delete reference;
  });
}

void pseudo_read(const Request& request, std::size_t size, off_t offset,
                 const fuse_file_info& info) {
  const PseudoOpenRef& reference = *reference_of(info);
  MountContext& context = context_of(request);
  ReaderPool& pool = reference->waits_for_device ? *context.reader_pool : *context.pseudo_pool;
  pool.run([request, size, offset, open = reference] {
    Result<std::string> text;
    {
      MutexLock lock(open->mutex);
      text = open->handle->read(static_cast<std::uint64_t>(offset), size);
    }
    if (!text) return reply_error(request, text.error());
    request.answer(fuse_reply_buf, text->data(), text->size());
  });
}

void pseudo_write(const Request& request, std::string_view text, const fuse_file_info& info) {
  context_of(request).pseudo_pool->run(
      [request, text = std::string(text), open = *reference_of(info)] {
        Result<std::size_t> written;
        {
          MutexLock lock(open->mutex);
          written = open->handle->write(text);
        }
        if (!written) return reply_error(request, written.error());
        request.answer(fuse_reply_write, *written);
      });
}

void pseudo_release(const Request& request, const fuse_file_info& info) {
  delete reference_of(info);
  request.answer(fuse_reply_err, 0);
}

void pseudo_readdir(const Request& request, fuse_ino_t node, std::size_t size, off_t offset,
                    bool is_plus) {
  PseudoTree& tree = *context_of(request).pseudo_tree;
  EntryBuffer entries(request, size, is_plus);
  struct stat brief{};
  brief.st_ino = node;
  brief.st_mode = S_IFDIR;
  bool goes_on = offset >= kCookieOfDot || entries.add(".", brief, kCookieOfDot);
  brief.st_ino = static_cast<ino_t>(ObjectId::kRoot);
  if (goes_on && offset < kCookieOfDotDot) goes_on = entries.add("..", brief, kCookieOfDotDot);
  std::uint64_t cookie =
      offset > kCookieOfControl ? static_cast<std::uint64_t>(offset - kCookieOfControl) : 0;
  while (goes_on) {
    const auto batch = tree.list(node, cookie, kEntriesAtATime);
    if (!batch || batch->empty()) break;
    for (const PseudoEntry& entry : *batch) {
      brief.st_ino = entry.node;
      brief.st_mode = entry.is_directory ? S_IFDIR : S_IFREG;
      const off_t next = static_cast<off_t>(entry.cookie) + kCookieOfControl;
      goes_on = entries.add(entry.name, brief, next);
      if (!goes_on) break;
      cookie = entry.cookie;
    }
  }
  entries.reply();
}

}  // namespace kvslot
