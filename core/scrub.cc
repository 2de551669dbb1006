// One pass of the scrub. Called by fs/pseudo_scrub; reads through the device like any reader.
#include <kvslot/scrub.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "core/reader_ticket.h"
#include "core/state.h"

namespace kvslot {
namespace {

constexpr std::uint32_t kNodesPerStep = 1024;  // looked at under one lock

std::uint32_t padded_bytes(const Extent& extent) {
  return static_cast<std::uint32_t>(round_up(extent.size_bytes, kBlockSizeBytes));
}

}  // namespace

Scrub::Scrub(Volume& volume) : state_(*volume.state_) {
  state_.counters.scrubs.fetch_add(1, std::memory_order_relaxed);
}

Result<bool> Scrub::step() {
  std::optional<ReaderTicket> ticket;
  std::vector<Piece> pieces;
  {
    MutexLock lock(state_.mutex);
    if (state_.closed) return fail(Errc::kBusy, "the store is closed", ESHUTDOWN);
    pieces = collect();
    ticket.emplace(state_);
  }
  if (auto ok = verify(pieces); !ok) return fail(ok);
  return !is_over_;
}

// The next extents, from where the last step stopped. Values may come, go and change between
// steps: a node's number that is another's by now is begun anew.
std::vector<Scrub::Piece> Scrub::collect() {
  state_.mutex.assert_held();
  std::vector<Piece> pieces;
  std::uint64_t size_bytes = 0;
  const std::uint32_t end = std::min(state_.index.node_limit(), node_ + kNodesPerStep);
  while (node_ < end && size_bytes < kScrubStepBytesMax) {
    const auto node = static_cast<NodeId>(node_);
    if (state_.index.is_valid(node) && state_.index.kind(node) == NodeKind::kFile) {
      if (state_.index.object(node) != object_) block_ = 0;
      object_ = state_.index.object(node);
      if (block_ == 0) ++progress_.files;
      collect_from(node, size_bytes, pieces);
      if (size_bytes >= kScrubStepBytesMax) break;  // perhaps in the middle of this one
    }
    ++node_;
    object_ = ObjectId::kNone;
    block_ = 0;
  }
  is_over_ = node_ >= state_.index.node_limit();
  return pieces;
}

void Scrub::collect_from(NodeId node, std::uint64_t& size_bytes, std::vector<Piece>& pieces) {
  state_.mutex.assert_held();
  Extent scratch;
  for (const Extent& extent : state_.index.extents(node, scratch)) {
    if (extent.file_block < block_) continue;
    if (size_bytes >= kScrubStepBytesMax) return;
    pieces.push_back({.node = node, .object = object_, .extent = extent});
    size_bytes += padded_bytes(extent);
    block_ = extent.file_block + 1;
  }
}

Result<void> Scrub::verify(const std::vector<Piece>& pieces) {
  std::vector<Buffer> buffers;
  std::vector<iovec> segments;
  std::vector<IoRequest> requests;
  segments.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    // From the heap: staging memory is for those who write.
    buffers.push_back(Buffer::from_heap(padded_bytes(piece.extent)));
    if (!buffers.back()) return fail(Errc::kIo, "no memory to scrub with", ENOMEM);
    segments.push_back({buffers.back().data(), padded_bytes(piece.extent)});
    requests.push_back({.op = IoOp::kRead,
                        .offset_bytes = std::uint64_t{piece.extent.device_block} * kBlockSizeBytes,
                        .segments = {&segments.back(), 1},
                        .error = 0});
  }
  if (!requests.empty()) state_.run(requests);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    ++progress_.extents;
    progress_.bytes += pieces[i].extent.size_bytes;
    state_.counters.scrubbed_extents.fetch_add(1, std::memory_order_relaxed);
    state_.counters.scrubbed_bytes.fetch_add(pieces[i].extent.size_bytes,
                                             std::memory_order_relaxed);
    const bool holds = requests[i].error == 0 && matches(pieces[i], buffers[i].bytes());
    if (holds) continue;
    if (!is_device_lost(requests[i].error)) {  // once more: the fault may be on the way
      requests[i].error = 0;
      state_.run({&requests[i], 1});
    }
    if (auto ok = judge(pieces[i], buffers[i].bytes(), requests[i].error); !ok) return ok;
  }
  return {};
}

bool Scrub::matches(const Piece& piece, ConstBytes bytes) const {
  return extent_checksum(state_.geometry.uuid, piece.object, piece.extent.stamp,
                         bytes.first(piece.extent.size_bytes)) == piece.extent.checksum;
}

Result<void> Scrub::judge(const Piece& piece, Bytes bytes, int error) {
  if (is_device_lost(error)) return fail(Errc::kIo, "the device is lost", error);
  if (error == 0 && matches(piece, bytes)) return {};
  if (!is_current(piece)) return {};
  ++(error == 0 ? progress_.corrupt : progress_.unreadable);
  (error == 0 ? state_.counters.scrub_corrupt : state_.counters.scrub_unreadable)
      .fetch_add(1, std::memory_order_relaxed);
  state_.note_fault({.time_ns = 0,
                     .operation = "scrub",
                     .key = state_.inspector->path_of(piece.node),
                     .slot = state_.slot_of(piece.extent.device_block),
                     .os_errno = error == 0 ? EIO : error,
                     .action = error == 0 ? "checksum mismatch twice: left as it is, reads give EIO"
                                          : "the device failed twice: left as it is"});
  return {};
}

// Whether the value still has exactly this extent.
bool Scrub::is_current(const Piece& piece) const {
  MutexLock lock(state_.mutex);
  if (state_.closed || !state_.index.is_valid(piece.node)) return false;
  if (state_.index.object(piece.node) != piece.object) return false;
  Extent scratch;
  const auto extents = state_.index.extents(piece.node, scratch);
  return std::ranges::find(extents, piece.extent) != extents.end();
}

}  // namespace kvslot
