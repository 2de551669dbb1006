// Opening, reading, writing and the commit points. Locks: a file's own, never while answering.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fs/filesystem.h"
#include "fs/text.h"

namespace kvslot {

namespace {

constexpr std::size_t kCopyChunkBytes = kMiB;
constexpr std::uint64_t kCopyBytesMax = 16 * kMiB;  // of one call; the caller goes on with the rest
constexpr int kReadAttemptsMax = 4;
constexpr std::size_t kParkedBytesMin = 256 * kMiB;  // of the bound on writes that wait for memory
constexpr std::size_t kParkedPerStaging = 4;         // the bound, in sizes of the staging memory

ReadView view_of(Buffer buffer, std::size_t size_bytes) {
  ReadView view;
  if (size_bytes > 0) view.pieces.push_back({.iov_base = buffer.data(), .iov_len = size_bytes});
  view.size_bytes = size_bytes;
  view.buffers.push_back(std::move(buffer));
  return view;
}

void copy_view(const ReadView& view, Bytes target) {
  for (const iovec& piece : view.pieces) {
    const std::size_t size = std::min(piece.iov_len, target.size());
    if (size > 0) std::memcpy(target.data(), piece.iov_base, size);
    target = target.subspan(size);
  }
  if (!target.empty()) std::memset(target.data(), 0, target.size());
}

// Of memory (kBusy) or of slots (kNoSpace).
bool is_short_of(const Result<void>& written, Errc what) {
  return !written && written.error().code == what;
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
      file->missing_at.reset();
    }
    ++file->handles;
    if (mode.writes) ++file->writers;
  }
  if (mode.truncates) note_truncation(*file, mode.clears_privileges);
  auto handle = std::make_unique<OpenFile>();
  handle->file = file.ref();
  handle->writes = mode.writes;
  handle->syncs = mode.syncs;
  MutexLock lock(file->mutex);
  handle->errors_seen = file->error_count;
  if (file->error && !file->error_was_reported) --handle->errors_seen;
  return handle;
}

// Opening with O_TRUNC counts as a write, also where there was nothing to cut.
void Filesystem::note_truncation(LiveFile& file, bool clears_privileges) {
  if (clears_privileges) drop_privileges(file);
  const TimestampNs now = wall_clock_ns();
  {
    MutexLock lock(file.mutex);
    if (file.content.is_dirty()) {
      file.written_at = now;
      return;
    }
  }
  (void)volume_.set_attributes(file.node, {.mode = {},
                                           .uid = {},
                                           .gid = {},
                                           .atime_ns = {},
                                           .mtime_ns = now,
                                           .ctime_ns = now,
                                           .record = true});
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
    abandons = handle->writes && file->writers == 0 && file->missing_at;
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

// ---- Writing

Result<void> Filesystem::write_now(LiveFile& file, std::uint64_t offset_bytes, ConstBytes bytes,
                                   LiveContent::Memory memory) {
  MutexLock lock(file.mutex);
  if (memory == LiveContent::Memory::kPoolOnly && Publisher::is_commit_starved(file)) {
    return fail(Errc::kBusy, "write: a commit comes first");
  }
  if (auto done = file.content.write(offset_bytes, bytes, memory); !done) {
    if (done.error().code == Errc::kNoSpace && file.is_rewrite) file.missing_at = offset_bytes;
    return done;
  }
  if (file.missing_at && offset_bytes <= *file.missing_at &&
      offset_bytes + bytes.size() > *file.missing_at) {
    file.missing_at.reset();
  }
  file.is_only_emptied = false;
  file.written_at = wall_clock_ns();
  return {};
}

void Filesystem::finish_write(const LiveFileRef& file, bool syncs, Result<void> result, Done done) {
  if (!result) return done(std::move(result));
  publisher_.spill_if_large(file);
  if (syncs)
    publisher_.commit(file, {.until = CommitWaiter::Until::kDurable, .done = std::move(done)});
  else
    done({});
}

void Filesystem::write(const OpenFile& handle, std::uint64_t offset_bytes, ConstBytes bytes,
                       const WriteMode& mode, Done done) {
  ++counters_.writes;
  if (mode.clears_privileges) drop_privileges(*handle.file);
  // Before it is tried: what ends meanwhile counts as waited for.
  const std::uint64_t patience = publisher_.flights();
  auto written = write_now(*handle.file, offset_bytes, bytes, LiveContent::Memory::kPoolOnly);
  const bool waits = is_short_of(written, Errc::kBusy) || (is_short_of(written, Errc::kNoSpace) &&
                                                           publisher_.ended_flights() < patience);
  if (!waits) {
    return finish_write(handle.file, mode.syncs, std::move(written), std::move(done));
  }
  park({.file = handle.file,
        .offset_bytes = offset_bytes,
        .bytes = {bytes.begin(), bytes.end()},
        .syncs = mode.syncs,
        .done = std::move(done),
        .patience = patience});
}

// Staging memory is used up, or there are no slots while commits under way may still give some
// back, those of values that they replace: the write waits its turn, its thread does not. What
// waits is bounded as well, however many writers a device holds up.
void Filesystem::park(ParkedWrite write) {
  ++counters_.parked_writes;
  const std::size_t bytes_max =
      std::max(kParkedBytesMin, kParkedPerStaging * volume_.buffers().size_bytes());
  {
    MutexLock lock(parked_mutex_);
    if (parked_bytes_ + write.bytes.size() > bytes_max) {
      lock.unlock();
      return write.done(fail(Errc::kBusy, "write: too many wait for memory", ENOMEM));
    }
    parked_bytes_ += write.bytes.size();
    parked_.push_back(std::move(write));
    parked_count_ = parked_.size();
  }
  if (publisher_.in_flight() == 0) pool_.post([this] { serve_parked(); });
}

Result<void> Filesystem::carry_out(const ParkedWrite& write, LiveContent::Memory memory) {
  if (write.allocation) {
    return allocate_now(*write.file, *write.allocation, write.offset_bytes, memory);
  }
  return write_now(*write.file, write.offset_bytes, write.bytes, memory);
}

void Filesystem::serve_parked() {
  MutexLock lock(parked_mutex_);
  if (is_serving_parked_) return;
  while (!parked_.empty()) {
    is_serving_parked_ = true;
    ParkedWrite write = std::move(parked_.front());
    parked_.pop_front();
    parked_count_ = parked_.size();
    lock.unlock();
    auto memory = LiveContent::Memory::kPoolOnly;
    // Asked before it is tried. Later commits are not waited for.
    const bool may_gain_slots =
        publisher_.in_flight() > 0 && publisher_.ended_flights() < write.patience;
    auto result = carry_out(write, memory);
    const bool is_short = is_short_of(result, Errc::kBusy);
    bool waits = may_gain_slots && is_short_of(result, Errc::kNoSpace);
    if (is_short && !publisher_.can_spill()) {
      result = fail(Errc::kIo, "write: memory is used up and the device takes nothing", EIO);
    } else if (is_short) {
      waits = publisher_.spill_anything();
      memory = LiveContent::Memory::kPoolOrHeap;
      if (!waits) result = carry_out(write, memory);
    }
    if (!waits) {
      const std::size_t size_bytes = write.bytes.size();
      finish_write(write.file, write.syncs, std::move(result), std::move(write.done));
      write = {};
      lock.lock();
      parked_bytes_ -= size_bytes;
      continue;
    }
    lock.lock();
    parked_.push_front(std::move(write));
    parked_count_ = parked_.size();
    if (publisher_.in_flight() > 0) break;  // whatever ends next comes back here
  }
  is_serving_parked_ = false;
}

void Filesystem::allocate(const OpenFile& handle, Allocate what, std::uint64_t offset_bytes,
                          std::uint64_t length_bytes, Done done) {
  const Allocation allocation{.what = what, .length_bytes = length_bytes};
  const bool syncs = handle.syncs || options_.sync;  // it may change the size
  auto result =
      allocate_now(*handle.file, allocation, offset_bytes, LiveContent::Memory::kPoolOnly);
  if (result || result.error().code != Errc::kBusy) {
    return finish_write(handle.file, syncs, std::move(result), std::move(done));
  }
  park({.file = handle.file,
        .offset_bytes = offset_bytes,
        .bytes = {},
        .allocation = allocation,
        .syncs = syncs,
        .done = std::move(done)});
}

Result<void> Filesystem::allocate_now(LiveFile& file, const Allocation& allocation,
                                      std::uint64_t offset_bytes, LiveContent::Memory memory) {
  MutexLock lock(file.mutex);
  LiveContent& content = file.content;
  const Allocate what = allocation.what;
  const std::uint64_t end = offset_bytes + allocation.length_bytes;
  const bool reserves = what == Allocate::kReserve || what == Allocate::kReserveKeepSize;
  auto done = reserves ? content.reserve(offset_bytes, allocation.length_bytes)
                       : content.zero(offset_bytes, allocation.length_bytes, memory);
  if (!done) return done;
  const bool extends = what == Allocate::kReserve || what == Allocate::kZero;
  if (extends && end > content.size_bytes()) {
    if (done = content.truncate(end); !done) return done;
  }
  if (what == Allocate::kReserveKeepSize || !content.is_dirty()) return {};
  file.is_only_emptied = false;
  file.written_at = wall_clock_ns();
  return {};
}

void Filesystem::copy(const OpenFile& from, std::uint64_t from_offset, const OpenFile& to,
                      std::uint64_t to_offset, std::uint64_t size_bytes,
                      std::function<void(Result<std::uint64_t>)> done) {
  size_bytes = std::min(size_bytes, kCopyBytesMax);
  pool_.post([this, source = from.file, target = to.file, syncs = to.syncs, from_offset, to_offset,
              size_bytes, done = std::move(done)] {
    const auto answer = [done](std::uint64_t copied) {
      return [copied, done](Result<void> result) {
        done(result ? Result<std::uint64_t>(copied) : fail(result));
      };
    };
    std::uint64_t copied = 0;
    std::vector<std::byte> chunk;
    while (copied < size_bytes) {
      const auto view = read_now(source, from_offset + copied,
                                 std::min<std::uint64_t>(kCopyChunkBytes, size_bytes - copied));
      if (!view && copied == 0) return done(fail(view));
      if (!view || view->size_bytes == 0) break;
      chunk.resize(view->size_bytes);
      copy_view(*view, chunk);
      const auto written =
          write_now(*target, to_offset + copied, chunk, LiveContent::Memory::kPoolOnly);
      if (!written && copied == 0 && written.error().code == Errc::kBusy) {
        const std::uint64_t size = chunk.size();
        return park({.file = target,
                     .offset_bytes = to_offset,
                     .bytes = std::move(chunk),
                     .syncs = syncs,
                     .done = answer(size)});
      }
      if (!written && copied == 0) return done(fail(written));
      if (!written) break;
      publisher_.spill_if_large(target);
      copied += chunk.size();
    }
    finish_write(target, syncs && copied > 0, {}, answer(copied));
  });
}

// ---- Commit points

// What a waiter is told, it need not be told again.
Done Filesystem::reporting_to(OpenFile& handle, Done done) {
  return [&handle, done = std::move(done)](Result<void> result) {
    if (!result) (void)take_error(handle);
    done(std::move(result));
  };
}

void Filesystem::flush(OpenFile& handle, Done done) {
  ++counters_.flushes;
  if (!handle.writes) return done({});
  if (const auto error = take_error(handle)) {
    try_again(handle.file);  // this close tells of the last time
    return done(std::unexpected(*error));
  }
  bool is_only_emptied = false;
  bool is_incomplete = false;
  {
    MutexLock lock(handle.file->mutex);
    is_only_emptied = handle.file->is_only_emptied;
    is_incomplete = handle.file->missing_at.has_value();
  }
  if (is_incomplete) return done(fail(Errc::kNoSpace, "close: the value is not complete", ENOSPC));
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
  publisher_.commit(handle.file, {.until = CommitWaiter::Until::kDurable,
                                  .done = reporting_to(handle, std::move(done))});
}

}  // namespace kvslot
