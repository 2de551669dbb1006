// Reading values: extents are looked up under the lock, read without it, and every byte is
// checked before anybody sees it. A reader's ticket keeps the slots it reads from being used
// again until it has left.
#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "core/reader_ticket.h"
#include "core/state.h"

namespace kvslot {
namespace {

alignas(kBlockSizeBytes) constinit std::array<std::byte, kExtentSizeBytesMax> zeros{};

// One extent to read, and which of its bytes are wanted.
struct WantedExtent {
  Extent extent;
  ObjectId object = ObjectId::kNone;
  std::uint32_t from_bytes = 0;  // within the extent
  std::uint32_t size_bytes = 0;
  std::uint64_t at_bytes = 0;  // within the answer
  std::byte* data = nullptr;   // of the whole extent, once its buffer exists
  int error = 0;               // of the transfer; a device that is lost may still use the buffer
  [[nodiscard]] std::uint32_t padded_bytes() const {
    return static_cast<std::uint32_t>(round_up(extent.size_bytes, kBlockSizeBytes));
  }
};

struct WantedView {
  std::vector<WantedExtent> extents;
  std::uint64_t size_bytes = 0;
  NodeId node = NodeId::kNone;
  Result<ReadView> result;
};

// The parts of `extents` inside [offset, offset + size) of the value.
void want(WantedView& view, std::span<const Extent> extents, ObjectId object,
          std::uint64_t offset_bytes) {
  const std::uint64_t end_bytes = offset_bytes + view.size_bytes;
  const auto first = std::partition_point(extents.begin(), extents.end(), [&](const Extent& e) {
    return std::uint64_t{e.file_block} * kBlockSizeBytes + e.size_bytes <= offset_bytes;
  });
  for (auto extent = first; extent != extents.end(); ++extent) {
    const std::uint64_t start = std::uint64_t{extent->file_block} * kBlockSizeBytes;
    if (start >= end_bytes) break;
    const std::uint64_t from = std::max(start, offset_bytes);
    const std::uint64_t to = std::min(start + extent->size_bytes, end_bytes);
    view.extents.push_back({.extent = *extent,
                            .object = object,
                            .from_bytes = static_cast<std::uint32_t>(from - start),
                            .size_bytes = static_cast<std::uint32_t>(to - from),
                            .at_bytes = from - offset_bytes});
  }
}

// Adds zeros to the view up to position `to_bytes` of the answer.
void fill_hole(ReadView& view, std::uint64_t to_bytes) {
  while (view.size_bytes < to_bytes) {
    const std::size_t size = std::min<std::uint64_t>(zeros.size(), to_bytes - view.size_bytes);
    view.pieces.push_back({zeros.data(), size});
    view.size_bytes += size;
  }
}

void add_piece(ReadView& view, std::byte* data, std::size_t size) {
  const bool goes_on =
      !view.pieces.empty() &&
      static_cast<std::byte*>(view.pieces.back().iov_base) + view.pieces.back().iov_len == data;
  if (goes_on) {
    view.pieces.back().iov_len += size;
  } else {
    view.pieces.push_back({data, size});
  }
  view.size_bytes += size;
}

}  // namespace

namespace {

// Reads and verifies what several views want, all transfers together.
class ContentReader {
 public:
  explicit ContentReader(Volume::State& state) : state_(state) {}

  void read(std::span<WantedView> views) {
    for (WantedView& view : views)
      if (view.result) plan(view);
    submit();
    for (WantedView& view : views)
      if (view.result) assemble(view);
  }

 private:
  struct Transfer {
    std::byte* data = nullptr;
    std::uint32_t first_block = 0;
    std::uint64_t bytes = 0;
    std::vector<WantedExtent*> extents;
  };

  // Neighbours on the device come in one transfer, into one buffer.
  void plan(WantedView& view) {
    const std::size_t before = transfers_.size();
    for (std::size_t i = 0; i < view.extents.size();) {
      Transfer transfer;
      transfer.first_block = view.extents[i].extent.device_block;
      std::uint32_t next_block = transfer.first_block;
      while (i < view.extents.size()) {
        WantedExtent& wanted = view.extents[i];
        if (wanted.extent.device_block != next_block ||
            transfer.bytes + wanted.padded_bytes() > kTransferSizeBytesMax)
          break;
        transfer.extents.push_back(&wanted);
        transfer.bytes += wanted.padded_bytes();
        next_block += wanted.padded_bytes() / kBlockSizeBytes;
        ++i;
      }
      Buffer buffer = state_.pool.take_or_heap(transfer.bytes);
      if (!buffer) {
        transfers_.resize(before);
        view.result = fail(Errc::kIo, "no memory to read into", ENOMEM);
        return;
      }
      transfer.data = buffer.data();
      std::byte* data = buffer.data();
      for (WantedExtent* wanted : transfer.extents) {
        wanted->data = data;
        data += wanted->padded_bytes();
      }
      view.result->buffers.push_back(std::move(buffer));
      transfers_.push_back(std::move(transfer));
    }
  }

  void submit() {
    std::vector<iovec> segments;
    std::vector<IoRequest> requests;
    segments.reserve(transfers_.size());
    requests.reserve(transfers_.size());
    for (const Transfer& transfer : transfers_) {
      segments.push_back({transfer.data, transfer.bytes});
      requests.push_back({.op = IoOp::kRead,
                          .offset_bytes = std::uint64_t{transfer.first_block} * kBlockSizeBytes,
                          .segments = {&segments.back(), 1},
                          .error = 0});
    }
    if (!requests.empty()) state_.run(requests);
    // What failed is read again extent by extent, in verify().
    for (std::size_t i = 0; i < requests.size(); ++i)
      for (WantedExtent* wanted : transfers_[i].extents) wanted->error = requests[i].error;
  }

  void assemble(WantedView& view) {
    for (const WantedExtent& wanted : view.extents) {
      if (!verify(view, wanted)) return;
      fill_hole(*view.result, wanted.at_bytes);
      add_piece(*view.result, wanted.data + wanted.from_bytes, wanted.size_bytes);
    }
    fill_hole(*view.result, view.size_bytes);
    state_.counters.value_bytes_read.fetch_add(view.size_bytes, std::memory_order_relaxed);
  }

  [[nodiscard]] bool matches(const WantedExtent& wanted) const {
    return extent_checksum(state_.geometry.uuid, wanted.object, wanted.extent.stamp,
                           {wanted.data, wanted.extent.size_bytes}) == wanted.extent.checksum;
  }

  // Bytes that do not match are read once more, in case the fault was on the way. Where the read
  // failed, the memory is as it was before, and may hold the value from an earlier read.
  // A device that is lost stopped the store and said so; its readers are counted.
  bool verify(WantedView& view, const WantedExtent& wanted) {
    if (is_device_lost(wanted.error)) return give_up(view);
    if (wanted.error == 0 && matches(wanted)) return true;
    state_.counters.rereads.fetch_add(1, std::memory_order_relaxed);
    const iovec segment{wanted.data, wanted.padded_bytes()};
    IoRequest request{.op = IoOp::kRead,
                      .offset_bytes = std::uint64_t{wanted.extent.device_block} * kBlockSizeBytes,
                      .segments = {&segment, 1},
                      .error = 0};
    state_.run({&request, 1});
    if (is_device_lost(request.error)) return give_up(view);
    if (request.error == 0 && matches(wanted)) return true;
    const bool is_corrupt = request.error == 0;
    if (is_corrupt) state_.counters.checksum_failures.fetch_add(1, std::memory_order_relaxed);
    state_.note_fault({.time_ns = 0,
                       .operation = "read",
                       .key = state_.inspector->path_of(view.node),
                       .slot = state_.slot_of(wanted.extent.device_block),
                       .os_errno = is_corrupt ? EIO : request.error,
                       .action = is_corrupt ? "checksum mismatch twice: EIO to the reader"
                                            : "the device failed twice: EIO to the reader"});
    if (!is_corrupt) return give_up(view);
    view.result = fail(Errc::kCorrupt, "the value's checksum does not match", EIO);
    return false;
  }

  // Whatever the device's errno: to a reader of a file it is EIO.
  bool give_up(WantedView& view) {
    state_.counters.read_failures.fetch_add(1, std::memory_order_relaxed);
    view.result = fail(Errc::kIo, "reading the value", EIO);
    return false;
  }

  Volume::State& state_;
  std::vector<Transfer> transfers_;
};

}  // namespace

void Volume::read_many(std::span<ReadRequest> requests) {
  State& s = *state_;
  std::vector<WantedView> views(requests.size());
  std::optional<ReaderTicket> ticket;
  {
    MutexLock lock(s.mutex);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const ReadRequest& request = requests[i];
      WantedView& view = views[i];
      view.node = request.node;
      if (!s.index.is_valid(request.node)) {
        view.result = fail(Errc::kNotFound, "no such node", ENOENT);
        continue;
      }
      if (s.index.kind(request.node) != NodeKind::kFile) {
        view.result = fail(Errc::kWrongKind, "not a file", EISDIR);
        continue;
      }
      const std::uint64_t size = s.index.size_bytes(request.node);
      if (request.whole && request.size_bytes < size) {
        view.result = fail(Errc::kTooLarge, "the value is larger than the buffer", ERANGE);
        continue;
      }
      if (request.offset_bytes >= size) continue;
      view.size_bytes = std::min<std::uint64_t>(request.size_bytes, size - request.offset_bytes);
      Extent scratch;
      want(view, s.index.extents(request.node, scratch), s.index.object(request.node),
           request.offset_bytes);
    }
    ticket.emplace(s);
  }
  ContentReader(s).read(views);
  ticket.reset();
  s.counters.gets.fetch_add(requests.size(), std::memory_order_relaxed);
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].result = std::move(views[i].result);
}

Result<ReadView> Volume::read(NodeId node, std::uint64_t offset_bytes, std::size_t size_bytes) {
  ReadRequest request{
      .node = node, .offset_bytes = offset_bytes, .size_bytes = size_bytes, .result = {}};
  read_many({&request, 1});
  return std::move(request.result);
}

namespace {

// Whether the window's slots are still its own: nobody named it yet, or the file's value does.
bool is_current(const Volume::State& state, NodeId node, const PlacedWindow& window)
    REQUIRES(state.mutex) {
  if (window.extents.empty()) return true;
  const Extent& first = window.extents.front();
  if (state.placed.contains(first.stamp)) return true;
  Extent scratch;
  const auto extents = state.index.extents(node, scratch);
  const auto found = std::ranges::lower_bound(extents, first.file_block, {}, &Extent::file_block);
  return found != extents.end() && found->stamp == first.stamp;
}

}  // namespace

Result<ReadView> Volume::read_placed(NodeId node, const PlacedWindow& window,
                                     std::uint32_t offset_bytes, std::uint32_t size_bytes) {
  State& s = *state_;
  WantedView view;
  view.node = node;
  view.size_bytes = size_bytes;
  std::optional<ReaderTicket> ticket;
  {
    MutexLock lock(s.mutex);
    if (!s.index.is_valid(node)) return fail(Errc::kNotFound, "no such node", ENOENT);
    if (!is_current(s, node, window))
      return fail(Errc::kNotFound, "the window was given up meanwhile", ESTALE);
    want(view, window.extents, s.index.object(node),
         std::uint64_t{window.window} * s.geometry.window_size_bytes() + offset_bytes);
    ticket.emplace(s);
  }
  ContentReader(s).read({&view, 1});
  return std::move(view.result);
}

void Volume::discard_placed(std::span<const PlacedWindow> windows) {
  State& s = *state_;
  MutexLock lock(s.mutex);
  for (const PlacedWindow& window : windows) {
    if (!window.extents.empty()) s.placed.erase(window.extents.front().stamp);
    s.unindexed_extents -= window.extents.size();
    s.doom_extents(window.extents, 0);  // no record ever named them
  }
  s.reclaim();
}

Result<std::uint64_t> Volume::seek(NodeId node, std::uint64_t offset_bytes, bool data) const {
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (!s.index.is_valid(node)) return fail(Errc::kNotFound, "no such node", ENOENT);
  const std::uint64_t size = s.index.size_bytes(node);
  if (offset_bytes >= size) return fail(Errc::kNotFound, "past the end", ENXIO);
  Extent scratch;
  std::uint64_t position = offset_bytes;
  for (const Extent& extent : s.index.extents(node, scratch)) {
    const std::uint64_t start = std::uint64_t{extent.file_block} * kBlockSizeBytes;
    const std::uint64_t end = start + extent.size_bytes;
    if (end <= position) continue;
    if (data) return std::max(start, position);
    if (start > position) return position;
    position = end;
  }
  if (data) return fail(Errc::kNotFound, "no data behind here", ENXIO);
  return std::min(position, size);
}

}  // namespace kvslot
