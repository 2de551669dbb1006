// See log_tail.h; core/LAYOUT.md "Recovery" gives the reasons.
#include "core/log_tail.h"

#include <algorithm>
#include <utility>

#include "core/device_io.h"

namespace kvslot {
namespace {

constexpr std::size_t kReadTogether = 64;

std::uint64_t offset_of(const Extent& extent) {
  return std::uint64_t{extent.device_block} * kBlockSizeBytes;
}

}  // namespace

Result<void> check_place(const Geometry& geometry, const Extent& extent) {
  const std::uint64_t first = geometry.slots_offset_bytes / kBlockSizeBytes;
  const std::uint64_t end = first + std::uint64_t{geometry.slot_count} * geometry.blocks_per_slot();
  if (extent.device_block < first ||
      extent.device_block + units_of(extent.size_bytes, kBlockSizeBytes) > end)
    return fail(Errc::kCorrupt, "a value outside the slots");
  return {};
}

bool LogTail::is_live(const TailExtent& tail) const NO_THREAD_SAFETY_ANALYSIS {
  const NodeId node = loaded_.find(tail.object);
  if (node == NodeId::kNone) return false;
  Extent scratch;
  const auto extents = state_.index.extents(node, scratch);
  const auto at = std::partition_point(extents.begin(), extents.end(), [&](const Extent& e) {
    return e.file_block < tail.extent.file_block;
  });
  return at != extents.end() && *at == tail.extent;
}

std::vector<LogTail::ReadValue> LogTail::read(std::span<const TailExtent> group) {
  std::vector<ReadValue> values(group.size());
  std::vector<iovec> segments(group.size());
  std::vector<IoRequest> requests(group.size());
  for (std::size_t i = 0; i < group.size(); ++i) {
    const std::size_t bytes = round_up(group[i].extent.size_bytes, kBlockSizeBytes);
    values[i].bytes = Buffer::from_heap(bytes);
    segments[i] = {values[i].bytes.data(), bytes};
    requests[i] = {.op = IoOp::kRead,
                   .offset_bytes = offset_of(group[i].extent),
                   .segments = {&segments[i], 1}};
  }
  if (!requests.empty()) state_.device->run(requests);
  for (std::size_t i = 0; i < group.size(); ++i) {
    const auto judge = [&] {
      const Extent& extent = group[i].extent;
      values[i].error = requests[i].error;
      values[i].holds =
          requests[i].error == 0 &&
          extent_checksum(uuid_, group[i].object, extent.stamp,
                          values[i].bytes.first(extent.size_bytes)) == extent.checksum;
    };
    judge();
    if (values[i].holds || is_device_lost(values[i].error)) continue;
    // Once more, alone: a fault on the way must not cost what was acknowledged.
    requests[i].error = 0;
    state_.device->run({&requests[i], 1});
    judge();
  }
  return values;
}

Result<std::uint64_t> LogTail::first_missing() {
  std::uint64_t missing = 0;
  std::vector<std::pair<TailExtent, int>> unreadable;
  std::vector<TailExtent> group;
  for (std::size_t i = 0; i <= loaded_.tail().size(); ++i) {
    const bool at_end = i == loaded_.tail().size();
    if (!at_end && is_live(loaded_.tail()[i])) {
      if (auto ok = check_place(state_.geometry, loaded_.tail()[i].extent); !ok) return fail(ok);
      group.push_back(loaded_.tail()[i]);
    }
    if (group.size() < kReadTogether && !at_end) continue;
    const auto values = read(group);
    for (std::size_t k = 0; k < group.size(); ++k) {
      if (values[k].error != 0) {
        unreadable.emplace_back(group[k], values[k].error);
      } else if (!values[k].holds && (missing == 0 || group[k].sequence < missing)) {
        missing = group[k].sequence;
      }
    }
    group.clear();
  }
  // Where the log ends before it, a value is not needed; where not, the next pass sees it again.
  if (missing == 0)
    for (const auto& [tail, error] : unreadable)
      if (auto ok = pass_over_unreadable(tail, error); !ok) return fail(ok);
  return missing;
}

// Whether the value was acknowledged cannot be told: to end the log here might lose it and all that
// followed, to go on might lose the one that it replaced. Who only reads loses nothing.
Result<void> LogTail::pass_over_unreadable(const TailExtent& tail, int os_errno) {
  if (!state_.options.read_only || is_device_lost(os_errno))
    return fail(Errc::kIo,
                "a value of the last batches cannot be read; mount with -o ro, or take out what "
                "is whole with 'kvslot fsck --salvage DIR'",
                os_errno);
  state_.note_fault({.time_ns = 0,
                     .operation = "recovery",
                     .key = loaded_.name_of(loaded_.find(tail.object)).name,
                     .slot = state_.slot_of(tail.extent.device_block),
                     .os_errno = os_errno,
                     .action = "cannot be read; it may not have been acknowledged"});
  return {};
}

Result<void> LogTail::write_again() {
  if (auto ok = write_values_again(); !ok) return ok;
  return write_blocks_again();
}

Result<void> LogTail::write_values_again() {
  // In the order of the device; a record may have named an extent that an earlier one did.
  std::vector<TailExtent> live;
  for (const TailExtent& tail : loaded_.tail())
    if (is_live(tail)) live.push_back(tail);
  const auto place = [](const TailExtent& tail) { return tail.extent.device_block; };
  std::ranges::sort(live, {}, place);
  const auto repeated = std::ranges::unique(live, {}, place);
  live.erase(repeated.begin(), repeated.end());
  for (std::size_t done = 0; done < live.size(); done += kReadTogether) {
    const auto group = std::span(live).subspan(done, std::min(kReadTogether, live.size() - done));
    auto values = read(group);
    std::vector<iovec> segments(group.size());
    std::vector<IoRequest> requests(group.size());
    for (std::size_t i = 0; i < group.size(); ++i) {
      if (!values[i].holds)
        return fail(Errc::kIo, "reading a value of the last batches again", values[i].error);
      segments[i] = {values[i].bytes.data(), round_up(group[i].extent.size_bytes, kBlockSizeBytes)};
      requests[i] = {.op = IoOp::kWrite,
                     .offset_bytes = offset_of(group[i].extent),
                     .segments = {&segments[i], 1}};
    }
    state_.run(requests);
    for (std::size_t i = 0; i < group.size(); ++i) {
      if (requests[i].error == 0) continue;
      const TailExtent& tail = group[i];
      const auto ok = write_or_confirm(
          requests[i].offset_bytes, values[i].bytes.first(segments[i].iov_len),
          [&](ConstBytes bytes) {
            return extent_checksum(uuid_, tail.object, tail.extent.stamp,
                                   bytes.first(tail.extent.size_bytes)) == tail.extent.checksum;
          });
      if (!ok) return ok;
    }
  }
  return {};
}

// Blocks stand one behind the other, and go out together.
Result<void> LogTail::write_blocks_again() {
  const auto& blocks = loaded_.tail_blocks();
  for (std::size_t next = 0; next < blocks.size();) {
    const std::uint64_t start = blocks[next].offset_bytes;
    std::uint64_t end = start;
    std::vector<std::uint64_t> sizes;
    while (next < blocks.size() && blocks[next].offset_bytes == end &&
           (end == start || end + blocks[next].size_bytes - start <= kTransferSizeBytesMax)) {
      sizes.push_back(blocks[next].size_bytes);
      end += blocks[next++].size_bytes;
    }
    const auto holds = [&](ConstBytes bytes) {
      for (const std::uint64_t size : sizes) {
        const ConstBytes block = bytes.first(size);
        const auto header = peek_journal_header(block);
        if (!header || header->size_bytes != size || !verify_journal_block(block, *header, uuid_))
          return false;
        bytes = bytes.subspan(size);
      }
      return true;
    };
    const Buffer buffer = Buffer::from_heap(end - start);
    const Bytes bytes = buffer.first(end - start);
    const std::uint64_t offset = state_.geometry.journal_offset_bytes + start;
    if (auto ok = read_device(*state_.device, offset, bytes); !ok) return ok;
    if (!holds(bytes)) return fail(Errc::kIo, "reading the journal again", EIO);
    if (auto ok = write_or_confirm(offset, bytes, holds); !ok) return ok;
  }
  return {};
}

// A sector that takes no more writes may be read all the same, and what is read past every cache is
// there. It is no reason to keep a store closed.
Result<void> LogTail::write_or_confirm(std::uint64_t offset_bytes, Bytes bytes,
                                       const std::function<bool(ConstBytes)>& holds) {
  const auto written = write_device(*state_.device, offset_bytes, bytes);
  if (written || is_device_lost(written.error().os_errno)) return written;
  if (!state_.device->info().is_direct)
    return fail(written.error().code,
                "what was written last cannot be written again, and may be in the page cache only; "
                "mount with -o ro, or take out what is whole with 'kvslot fsck --salvage DIR'",
                written.error().os_errno);
  if (auto ok = read_device(*state_.device, offset_bytes, bytes); !ok) return ok;
  if (!holds(bytes)) return written;
  state_.note_fault({.time_ns = 0,
                     .operation = "recovery",
                     .key = {},
                     .slot = {},
                     .os_errno = written.error().os_errno,
                     .action = "what was written last can be read, but not be written again"});
  return {};
}

}  // namespace kvslot
