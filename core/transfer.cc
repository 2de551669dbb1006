// The policy on short transfers and retries (design: failures of the device).
#include "core/transfer.h"

#include <kvslot/check.h>

#include <algorithm>
#include <utility>

namespace kvslot {
namespace {

bool is_aligned(std::uint64_t value) { return value % kBlockSizeBytes == 0; }

}  // namespace

std::size_t checked_size_bytes(const IoRequest& request) {
  KVSLOT_CHECK(is_aligned(request.offset_bytes), "transfer: unaligned offset");
  KVSLOT_CHECK(!request.segments.empty() && request.segments.size() <= kSegmentsMax,
               "transfer: no segments, or too many");
  std::size_t size_bytes = 0;
  for (const iovec& segment : request.segments) {
    KVSLOT_CHECK(is_aligned(reinterpret_cast<std::uintptr_t>(segment.iov_base)) &&
                     is_aligned(segment.iov_len) && segment.iov_len > 0,
                 "transfer: unaligned or empty segment");
    size_bytes += segment.iov_len;
  }
  KVSLOT_CHECK(size_bytes <= kTransferSizeBytesMax, "transfer: too large");
  return size_bytes;
}

Transfer::Transfer(IoRequest& request)
    : request_(&request), size_bytes_(checked_size_bytes(request)) {
  request_->error = 0;
}

TransferStep Transfer::on_result(std::int64_t result, IoCounters& counters) {
  if (result < 0) return on_error(static_cast<int>(-result), counters);
  const std::size_t left_bytes = size_bytes_ - done_bytes_;
  const auto moved_bytes = static_cast<std::size_t>(result);
  KVSLOT_CHECK(moved_bytes <= left_bytes, "transfer: more bytes moved than asked for");
  if (moved_bytes == left_bytes) return finish(0, counters);
  IoCounters::add(counters.short_transfers);
  ++short_count_;
  if (moved_bytes == 0 || short_count_ == kShortTransfersMax) return finish(EIO, counters);
  skip(moved_bytes / kBlockSizeBytes * kBlockSizeBytes);  // O_DIRECT resumes at whole blocks only.
  return TransferStep::kResubmit;
}

TransferStep Transfer::on_error(int error, IoCounters& counters) {
  if (error == EFBIG) error = ENOSPC;  // a limit of file sizes: no room, and nothing is broken
  if (!is_transient(error) || retry_count_ == kRetriesMax) return finish(error, counters);
  ++retry_count_;
  IoCounters::add(counters.retries);
  return TransferStep::kResubmit;
}

TransferStep Transfer::finish(int error, IoCounters& counters) {
  request_->error = error;
  const bool is_read = request_->op == IoOp::kRead;
  IoCounters::add(is_read ? counters.reads : counters.writes);
  if (error == 0) {
    IoCounters::add(is_read ? counters.read_bytes : counters.written_bytes, size_bytes_);
  }
  return TransferStep::kDone;
}

void Transfer::skip(std::size_t size_bytes) {
  if (size_bytes == 0) return;
  std::vector<iovec> rest;
  std::size_t skipped_bytes = size_bytes;
  for (iovec segment : segments()) {
    const std::size_t cut_bytes = std::min(skipped_bytes, segment.iov_len);
    skipped_bytes -= cut_bytes;
    segment.iov_base = static_cast<std::byte*>(segment.iov_base) + cut_bytes;
    segment.iov_len -= cut_bytes;
    if (segment.iov_len > 0) rest.push_back(segment);
  }
  rest_ = std::move(rest);
  done_bytes_ += size_bytes;
}

}  // namespace kvslot
