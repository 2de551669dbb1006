// Writes, copies and reservations. Locks: a file's own, never while answering.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "fs/filesystem.h"
#include "fs/text.h"

namespace kvslot {

namespace {

constexpr std::size_t kCopyChunkBytes = kMiB;
constexpr std::uint64_t kCopyBytesMax = 16 * kMiB;  // of one call; the caller goes on with the rest
constexpr std::size_t kMissingRangesMax = 64;

// Where there are very many, what lies between them counts as missing too: the old value stays.
void add_missing(RangeSet& missing, std::uint64_t begin, std::uint64_t end) {
  missing.add(begin, end);
  if (missing.ranges().size() <= kMissingRangesMax) return;
  missing.add(missing.ranges().front().begin, missing.ranges().back().end);
}

}  // namespace

Result<void> Filesystem::write_now(LiveFile& file, OpenFile* handle, std::uint64_t offset_bytes,
                                   ConstBytes bytes, LiveContent::Memory memory) {
  const std::uint64_t end = offset_bytes + bytes.size();
  MutexLock lock(file.mutex);
  if (memory == LiveContent::Memory::kPoolOnly && Publisher::is_commit_starved(file)) {
    return fail(Errc::kBusy, "write: a commit comes first");
  }
  if (auto done = file.content.write(offset_bytes, bytes, memory); !done) {
    if (done.error().code != Errc::kNoSpace) return done;
    if (file.is_rewrite) add_missing(file.missing, offset_bytes, end);
    if (handle == nullptr) return done;
    if (handle->resizes_seen != file.resizes) handle->missing.clear();
    handle->resizes_seen = file.resizes;
    add_missing(handle->missing, offset_bytes, end);
    return done;
  }
  file.missing.remove(offset_bytes, end);
  if (handle != nullptr) handle->missing.remove(offset_bytes, end);
  file.is_only_emptied = false;
  file.written_at = wall_clock_ns();
  return {};
}

void Filesystem::finish_write(const LiveFileRef& file, bool syncs, Result<void> result, Done done) {
  if (!result) return done(std::move(result));
  publisher_.spill_if_large(file);
  if (syncs && is_incomplete(*file)) {  // the old value stays
    return done(fail(Errc::kNoSpace, "write: the value is not complete", ENOSPC));
  }
  if (syncs)
    publisher_.commit(file, {.until = CommitWaiter::Until::kDurable, .done = std::move(done)});
  else
    done({});
}

// It waits its turn; its thread does not.
void Filesystem::park(const LiveFileRef& file, bool syncs, ParkedWrite write, Done done) {
  ++counters_.parked_writes;
  write.finish = [this, file, syncs, done = std::move(done)](Result<void> result) {
    finish_write(file, syncs, std::move(result), done);
  };
  parked_.park(std::move(write));
}

void Filesystem::write(OpenFile& handle, std::uint64_t offset_bytes, ConstBytes bytes,
                       const WriteMode& mode, Done done) {
  ++counters_.writes;
  if (mode.clears_privileges) drop_privileges(*handle.file);
  const std::uint64_t patience = publisher_.flights();
  auto written =
      write_now(*handle.file, &handle, offset_bytes, bytes, LiveContent::Memory::kPoolOnly);
  if (!parked_.is_worth_waiting(written, patience)) {
    return finish_write(handle.file, mode.syncs, std::move(written), std::move(done));
  }
  std::shared_ptr<const std::vector<std::byte>> kept;
  if (!mode.keeps_bytes) {
    parked_.make_room(bytes.size());
    kept = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
    bytes = *kept;
  }
  ParkedWrite write{.attempt =
                        [this, file = handle.file, &handle, offset_bytes, bytes,
                         kept](LiveContent::Memory memory) {
                          return write_now(*file, &handle, offset_bytes, bytes, memory);
                        },
                    .finish = {},
                    .kept_bytes = kept ? bytes.size() : 0,
                    .patience = patience};
  park(handle.file, mode.syncs, std::move(write), std::move(done));
}

void Filesystem::allocate(const OpenFile& handle, Allocate what, std::uint64_t offset_bytes,
                          std::uint64_t length_bytes, Done done) {
  const bool syncs = handle.syncs || options_.sync;  // it may change the size
  const std::uint64_t patience = publisher_.flights();
  const auto attempt = [this, file = handle.file, what, offset_bytes,
                        length_bytes](LiveContent::Memory memory) {
    return allocate_now(*file, what, offset_bytes, length_bytes, memory);
  };
  auto result = attempt(LiveContent::Memory::kPoolOnly);
  if (!parked_.is_worth_waiting(result, patience)) {
    return finish_write(handle.file, syncs, std::move(result), std::move(done));
  }
  park(handle.file, syncs, {.attempt = attempt, .finish = {}, .patience = patience},
       std::move(done));
}

Result<void> Filesystem::allocate_now(LiveFile& file, Allocate what, std::uint64_t offset_bytes,
                                      std::uint64_t length_bytes, LiveContent::Memory memory) {
  {
    MutexLock lock(file.mutex);
    LiveContent& content = file.content;
    const std::uint64_t end = offset_bytes + length_bytes;
    const bool reserves = what == Allocate::kReserve || what == Allocate::kReserveKeepSize;
    auto done = reserves ? content.reserve(offset_bytes, length_bytes)
                         : content.zero(offset_bytes, length_bytes, memory);
    if (!done) return done;
    const bool extends = what == Allocate::kReserve || what == Allocate::kZero;
    if (extends && end > content.size_bytes()) {
      if (done = content.truncate(end); !done) return done;
    }
    if (what != Allocate::kReserveKeepSize && content.is_dirty()) file.is_only_emptied = false;
  }
  note_change(file, false);  // a thread that serves the parked does not wait, either
  return {};
}

// One piece, read from below as a program would; shorter at the end of the source.
Result<std::uint64_t> Filesystem::copy_now(const CopyRange& range, LiveContent::Memory memory) {
  const auto view = read_now(range.from, range.from_offset,
                             std::min<std::uint64_t>(kCopyChunkBytes, range.size_bytes));
  if (!view) return fail(view);
  if (view->size_bytes == 0) return 0;
  std::vector<std::byte> chunk(view->size_bytes);
  copy_view(*view, chunk);
  if (auto written = write_now(*range.to, nullptr, range.to_offset, chunk, memory); !written) {
    return fail(written);
  }
  return chunk.size();
}

// What waits is read again when its turn comes, so that nothing is kept for it.
void Filesystem::copy_later(const CopyRange& range, bool syncs, std::uint64_t patience,
                            CopyDone done) {
  const auto copied = std::make_shared<std::uint64_t>(0);
  park(range.to, syncs,
       {.attempt = [this, range, copied](LiveContent::Memory memory) -> Result<void> {
          const auto piece = copy_now(range, memory);
          if (!piece) return fail(piece);
          *copied = *piece;
          return {};
        },
        .finish = {},
        .patience = patience},
       [copied, done = std::move(done)](Result<void> result) {
         done(result ? Result<std::uint64_t>(*copied) : fail(result));
       });
}

void Filesystem::copy(const OpenFile& from, std::uint64_t from_offset, const OpenFile& to,
                      std::uint64_t to_offset, std::uint64_t size_bytes, CopyDone done) {
  const CopyRange all{.from = from.file,
                      .from_offset = from_offset,
                      .to = to.file,
                      .to_offset = to_offset,
                      .size_bytes = std::min(size_bytes, kCopyBytesMax)};
  pool_.post([this, all, syncs = to.syncs, done = std::move(done)] {
    CopyRange left = all;
    while (left.size_bytes > 0) {
      const std::uint64_t patience = publisher_.flights();
      const auto piece = copy_now(left, LiveContent::Memory::kPoolOnly);
      if (!piece && left.size_bytes == all.size_bytes) {
        if (!parked_.is_worth_waiting(fail(piece), patience)) return done(fail(piece));
        return copy_later(left, syncs, patience, done);
      }
      if (!piece || *piece == 0) break;
      publisher_.spill_if_large(left.to);
      left.from_offset += *piece;
      left.to_offset += *piece;
      left.size_bytes -= *piece;
    }
    const std::uint64_t copied = all.size_bytes - left.size_bytes;
    finish_write(all.to, syncs && copied > 0, {}, [copied, done](Result<void> result) {
      done(result ? Result<std::uint64_t>(copied) : fail(result));
    });
  });
}

}  // namespace kvslot
