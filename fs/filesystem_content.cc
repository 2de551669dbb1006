// Opening, reading and the commit points; writing is in filesystem_writing.cc. Locks: a file's own,
// never while answering.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fs/filesystem.h"
#include "fs/text.h"

namespace kvslot {

namespace {

constexpr int kReadAttemptsMax = 4;

ReadView view_of(Buffer buffer, std::size_t size_bytes) {
  ReadView view;
  if (size_bytes > 0) view.pieces.push_back({.iov_base = buffer.data(), .iov_len = size_bytes});
  view.size_bytes = size_bytes;
  view.buffers.push_back(std::move(buffer));
  return view;
}

// An error of an earlier commit that this handle has not been told of.
std::optional<Error> take_error(OpenFile& handle) {
  LiveFile& file = *handle.file;
  MutexLock lock(file.mutex);
  if (!file.error || handle.errors_seen >= file.error_count) return std::nullopt;
  handle.errors_seen = file.error_count;
  file.error_was_reported = true;
  return file.error;
}

}  // namespace

void copy_view(const ReadView& view, Bytes target) {
  for (const iovec& piece : view.pieces) {
    const std::size_t size = std::min(piece.iov_len, target.size());
    if (size > 0) std::memcpy(target.data(), piece.iov_base, size);
    target = target.subspan(size);
  }
  if (!target.empty()) std::memset(target.data(), 0, target.size());
}

// ---- Open and release

Result<std::unique_ptr<OpenFile>> Filesystem::open(NodeId node, const OpenMode& mode) {
  ++counters_.opens;
  auto pinned = files_.pin(node);
  if (!pinned) return fail(pinned);
  const Pin file(files_, std::move(*pinned));
  {
    MutexLock lock(file->mutex);
    if (mode.truncates) {
      const bool was_empty = file->content.size_bytes() == 0;
      if (auto done = file->content.truncate(0); !done) return fail(done);
      if (!was_empty) file->is_only_emptied = true;
      if (file->content.stored_size_bytes() > 0) file->is_rewrite = true;
      file->missing.clear();
      ++file->resizes;
    }
    ++file->handles;
    if (mode.writes) ++file->writers;
  }
  if (mode.truncates) {
    if (mode.clears_privileges) drop_privileges(*file);
    note_change(*file, true);
  }
  auto handle = std::make_unique<OpenFile>();
  handle->file = file.ref();
  handle->writes = mode.writes;
  handle->syncs = mode.syncs;
  MutexLock lock(file->mutex);
  handle->errors_seen = file->error_count;
  if (file->error && !file->error_was_reported) --handle->errors_seen;
  return handle;
}

// What counts as a write sets the times, also where it changed no byte and no commit will come:
// O_TRUNC of an empty file, a truncation to the same size, a reservation. Waits where too much is
// recorded already.
void Filesystem::note_change(LiveFile& file, bool waits) {
  const TimestampNs now = wall_clock_ns();
  {
    MutexLock lock(file.mutex);
    if (file.content.needs_commit()) {
      file.written_at = now;  // recorded with it
      return;
    }
  }
  (void)volume_.set_attributes(file.node, {.mode = {},
                                           .uid = {},
                                           .gid = {},
                                           .atime_ns = {},
                                           .mtime_ns = now,
                                           .ctime_ns = now,
                                           .record = true,
                                           .waits = waits});
}

void Filesystem::release(std::unique_ptr<OpenFile> handle) {
  ++counters_.releases;
  const LiveFileRef& file = handle->file;
  bool commits = false;
  bool abandons = false;
  {
    MutexLock lock(file->mutex);
    --file->handles;
    if (handle->writes) --file->writers;
    abandons = handle->writes && file->writers == 0 && !file->missing.empty();
    // Where somebody else has it open for writing, that one's close is the commit point. The last
    // handle counts even if it only reads: it may have created the file.
    commits = (handle->writes || file->handles == 0) && file->writers == 0 &&
              file->content.needs_commit();
  }
  if (abandons)
    publisher_.abandon(file);
  else if (commits)
    publisher_.commit(file);
  files_.drop_if_idle(file);
  note_parting(file->node);
  handle.reset();  // and the node with it, where nobody else holds it
  parked_.wake();
}

// A removed file that somebody closes is about to give its slots back.
void Filesystem::note_parting(NodeId node) {
  if (const auto info = volume_.stat(node); !info || !info->linked) parked_.note_parting();
}

void Filesystem::drop_privileges(LiveFile& file) {
  {
    MutexLock lock(file.mutex);
    if (file.has_lost_privileges) return;
    file.has_lost_privileges = true;
  }
  const auto info = volume_.stat(file.node);
  if (!info) return;
  const std::uint32_t mode = without_privileges(info->attributes.mode);
  if (mode == info->attributes.mode) return;
  (void)volume_.set_attributes(file.node, {.mode = mode,
                                           .uid = {},
                                           .gid = {},
                                           .atime_ns = {},
                                           .mtime_ns = {},
                                           .ctime_ns = {},
                                           .waits = false});  // a write is on its way
}

// ---- Reading

Result<void> Filesystem::read_pieces(LiveFile& file, const std::vector<DevicePiece>& pieces,
                                     Bytes target) {
  for (const DevicePiece& piece : pieces) {
    const auto view = piece.placed
                          ? volume_.read_placed(file.node, *piece.placed, piece.window_offset,
                                                static_cast<std::uint32_t>(piece.size_bytes))
                          : volume_.read(file.node, piece.file_offset_bytes, piece.size_bytes);
    if (!view) return fail(view);
    copy_view(*view, target.subspan(piece.target_offset, piece.size_bytes));
  }
  return {};
}

// Waits for the device where it must.
Result<ReadView> Filesystem::read_now(const LiveFileRef& file, std::uint64_t offset_bytes,
                                      std::size_t size_bytes) {
  Buffer buffer = volume_.buffers().take_or_heap(std::max<std::size_t>(size_bytes, 1));
  for (int attempt = 1;; ++attempt) {
    std::vector<DevicePiece> pieces;
    std::uint64_t generation = 0;
    std::size_t size = 0;
    {
      MutexLock lock(file->mutex);
      const std::uint64_t end = file->content.size_bytes();
      size = offset_bytes >= end ? 0 : std::min<std::uint64_t>(size_bytes, end - offset_bytes);
      pieces = file->content.read(offset_bytes, buffer.first(size));
      generation = file->content.generation();
    }
    if (pieces.empty()) return view_of(std::move(buffer), size);
    auto done = read_pieces(*file, pieces, buffer.first(size));
    bool is_current = false;
    {
      // A commit that ended meanwhile may have changed what lies under the live bytes.
      MutexLock lock(file->mutex);
      is_current = generation == file->content.generation();
    }
    if (is_current || attempt == kReadAttemptsMax) {
      if (!done) return fail(done);
      return view_of(std::move(buffer), size);
    }
  }
}

void Filesystem::read(const OpenFile& handle, std::uint64_t offset_bytes, std::size_t size_bytes,
                      ReadDone done) {
  ++counters_.reads;
  const LiveFileRef& file = handle.file;
  bool is_plain = false;
  {
    MutexLock lock(file->mutex);
    const std::uint64_t end = file->content.size_bytes();
    size_bytes = offset_bytes >= end ? 0 : std::min<std::uint64_t>(size_bytes, end - offset_bytes);
    is_plain = file->content.is_plain();
  }
  if (size_bytes == 0) return done(ReadView());
  if (is_plain) {
    pool_.run([this, file, offset_bytes, size_bytes, done = std::move(done)] {
      done(volume_.read(file->node, offset_bytes, size_bytes));
    });
    return;
  }
  read_mixed(file, offset_bytes, size_bytes, std::move(done));
}

// Answers at once where memory has all of it.
void Filesystem::read_mixed(const LiveFileRef& file, std::uint64_t offset_bytes,
                            std::size_t size_bytes, ReadDone done) {
  Buffer buffer = volume_.buffers().take_or_heap(size_bytes);
  bool is_all = false;
  {
    MutexLock lock(file->mutex);
    const std::uint64_t end = file->content.size_bytes();
    size_bytes = offset_bytes >= end ? 0 : std::min<std::uint64_t>(size_bytes, end - offset_bytes);
    is_all = file->content.read(offset_bytes, buffer.first(size_bytes)).empty();
  }
  if (is_all) return done(view_of(std::move(buffer), size_bytes));
  pool_.run([this, file, offset_bytes, size_bytes, done = std::move(done)] {
    done(read_now(file, offset_bytes, size_bytes));
  });
}

Result<std::uint64_t> Filesystem::seek(const OpenFile& handle, std::uint64_t offset_bytes,
                                       bool data) {
  LiveFile& file = *handle.file;
  MutexLock lock(file.mutex);
  auto found = file.content.seek(offset_bytes, data);
  if (!found && found.error().code == Errc::kNotFound) {
    return fail(Errc::kNotFound, "lseek", ENXIO);
  }
  return found;
}

// ---- Commit points

// What a waiter is told, it need not be told again.
Done Filesystem::reporting_to(OpenFile& handle, Done done) {
  return [&handle, done = std::move(done)](Result<void> result) {
    if (!result) (void)take_error(handle);
    done(std::move(result));
  };
}

// Whether its writer may not know that a part of what it wrote is not there.
bool Filesystem::lacks_a_write(const OpenFile& handle) {
  LiveFile& file = *handle.file;
  {
    MutexLock lock(file.mutex);
    if (handle.missing.empty() || handle.resizes_seen != file.resizes) return false;
  }
  const auto info = volume_.stat(file.node);
  return info && info->linked;
}

void Filesystem::flush(OpenFile& handle, Done done) {
  ++counters_.flushes;
  note_parting(handle.file->node);  // its release comes later, and nobody waits for that
  if (!handle.writes) return done({});
  if (const auto error = take_error(handle)) {
    try_again(handle.file);  // this close tells of the last time
    return done(std::unexpected(*error));
  }
  bool is_only_emptied = false;
  {
    MutexLock lock(handle.file->mutex);
    is_only_emptied = handle.file->is_only_emptied;
  }
  if (is_incomplete(*handle.file))
    return done(fail(Errc::kNoSpace, "close: the value is not complete", ENOSPC));
  if (lacks_a_write(handle)) {
    done = [done = std::move(done)](Result<void> result) {
      done(result ? fail(Errc::kNoSpace, "close: a write did not fit", ENOSPC) : std::move(result));
    };
  }
  // Shells do so before they write; release commits it. With -o sync a new file is durable then.
  const auto info = volume_.stat(handle.file->node);
  const bool is_new = info && !info->stored;
  if (is_only_emptied && !(options_.sync && is_new)) return done({});
  // By default close returns once it is settled what is stored; it is on its way then.
  const auto until = options_.sync ? CommitWaiter::Until::kDurable : CommitWaiter::Until::kStarted;
  publisher_.commit(handle.file, {.until = until, .done = reporting_to(handle, std::move(done))});
}

void Filesystem::commit(NodeId node, Done done) {
  auto pinned = files_.pin(node);
  if (!pinned) return done(fail(pinned));
  const Pin file(files_, std::move(*pinned));
  const auto until = options_.sync ? CommitWaiter::Until::kDurable : CommitWaiter::Until::kStarted;
  publisher_.commit(file.ref(), {.until = until, .done = std::move(done)});
}

void Filesystem::try_again(const LiveFileRef& file) {
  publisher_.commit(file, {.until = CommitWaiter::Until::kStarted, .done = [](Result<void>) {}});
}

void Filesystem::fsync(OpenFile& handle, Done done) {
  ++counters_.fsyncs;
  if (const auto error = take_error(handle)) {
    try_again(handle.file);
    return done(std::unexpected(*error));
  }
  if (is_incomplete(*handle.file)) {  // the old value stays
    return done(fail(Errc::kNoSpace, "fsync: the value is not complete", ENOSPC));
  }
  publisher_.commit(handle.file, {.until = CommitWaiter::Until::kDurable,
                                  .done = reporting_to(handle, std::move(done))});
}

}  // namespace kvslot
