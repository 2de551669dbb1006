// The table of live files.
#include "fs/live_files.h"

#include <cerrno>
#include <utility>

namespace kvslot {

LiveFile::LiveFile(Volume& file_volume, const NodeInfo& info, const std::function<void()>& end_call)
    : volume(file_volume),
      node(info.node),
      on_end(end_call),
      content(file_volume, info.node, info.size_bytes, info.allocated_bytes, info.stored),
      is_only_emptied(!info.stored) {
  volume.hold(node);
}

LiveFile::~LiveFile() {
  volume.release(node);
  on_end();
}

bool is_incomplete(LiveFile& file) {
  MutexLock lock(file.mutex);
  return !file.missing.empty();
}

LiveFileRef LiveFiles::find(NodeId node) const {
  const Shard& home = shard(node);
  MutexLock lock(home.mutex);
  const auto found = home.files.find(static_cast<std::uint32_t>(node));
  return found == home.files.end() ? nullptr : found->second;
}

Result<LiveFileRef> LiveFiles::pin(NodeId node) {
  for (;;) {
    LiveFileRef file = find(node);
    if (file == nullptr) {
      Shard& home = shard(node);
      MutexLock lock(home.mutex);
      LiveFileRef& entry = home.files[static_cast<std::uint32_t>(node)];
      if (entry == nullptr) {
        const auto info = volume_.stat(node);  // under the lock: no commit can end in between
        if (!info || info->kind != NodeKind::kFile) {
          home.files.erase(static_cast<std::uint32_t>(node));
          if (!info) return fail(info);
          const int error = info->kind == NodeKind::kDirectory ? EISDIR : ELOOP;
          return fail(Errc::kWrongKind, "open: not a file", error);
        }
        entry = std::make_shared<LiveFile>(volume_, *info, on_end_);
      }
      file = entry;
    }
    MutexLock lock(file->mutex);
    if (file->is_dropped) continue;  // it leaves the table any moment
    ++file->pins;
    return file;
  }
}

void LiveFiles::unpin(const LiveFileRef& file) {
  {
    MutexLock lock(file->mutex);
    --file->pins;
  }
  drop_if_idle(file);
}

void LiveFiles::drop_if_idle(const LiveFileRef& file) {
  {
    MutexLock lock(file->mutex);
    if (file->is_dropped || file->handles > 0 || file->pins > 0 || file->is_busy) return;
    if (file->content.is_dirty()) {
      const auto info = volume_.stat(file->node);
      if (info && info->linked) return;  // a commit is due, or failed
    }
    file->is_dropped = true;
  }
  Shard& home = shard(file->node);
  MutexLock lock(home.mutex);
  home.files.erase(static_cast<std::uint32_t>(file->node));
}

void LiveFiles::mark_stale(NodeId node) {
  MutexLock lock(stale_mutex_);
  stale_.insert(static_cast<std::uint32_t>(node));
  stale_count_ = stale_.size();
}

bool LiveFiles::take_stale(NodeId node) {
  if (stale_count_ == 0) return false;
  MutexLock lock(stale_mutex_);
  const bool found = stale_.erase(static_cast<std::uint32_t>(node)) > 0;
  stale_count_ = stale_.size();
  return found;
}

std::vector<LiveFileRef> LiveFiles::all() const {
  std::vector<LiveFileRef> result;
  for (const Shard& part : shards_) {
    MutexLock lock(part.mutex);
    for (const auto& [node, file] : part.files) result.push_back(file);
  }
  return result;
}

}  // namespace kvslot
