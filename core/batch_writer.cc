// The write phase of a commit.
#include "core/batch_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/device_io.h"

namespace kvslot {

Result<void> BatchWriter::write() {
  for (PlannedChange& planned : batch_.planned()) prepare(planned);
  collect(false, true);
  for (const Stretch& stretch : stretches_) {
    measured_.merged_writes += static_cast<std::uint32_t>(stretch.extents.size() - 1);
    measured_.value_bytes += stretch.bytes;
  }
  measured_.data_requests = static_cast<std::uint32_t>(stretches_.size());
  if (auto ok = encode_block(); !ok) return ok;
  bool is_written = run(true);
  if (lost_error_ == 0 && any_failed()) {
    if (auto ok = repeat_failed(); !ok) return ok;
    is_written = run(true);
  }
  // Without the block nothing of the batch counts: where it fails it is tried once more, alone. A
  // device that is lost is not tried again, and may still use the memory.
  if (!is_written && lost_error_ == 0) {
    stretches_.clear();
    is_written = run(true);
  }
  if (lost_error_ != 0) return fail(Errc::kIo, "writing the batch", lost_error_);
  if (!is_written) {
    const bool is_absent = block_error_ == ENOSPC && erase_block();
    return fail(is_absent ? Errc::kNoSpace : Errc::kIo, "writing the journal", block_error_);
  }
  ring_.advance(block_offset_, header_);
  return {};
}

// Values failed, and the block that went out with them names places where they are not. A bad
// sector may take long to fail again, elsewhere too; if the process died meanwhile, the next
// opening would find a block of the last batches whose values it cannot read, which could be rot of
// what was acknowledged. So the block is gone, durably, before anything else is tried. Leaves the
// block as it is to be written, with what is true then.
Result<void> BatchWriter::repeat_failed() {
  if (!erase_block()) return fail(Errc::kIo, "erasing the journal block", EIO);
  if (auto ok = state_.flush_device(); !ok) return ok;
  is_block_there_ = false;
  // A request that failed may have covered innocent neighbours: each extent once more, alone.
  collect(true, false);
  run_data();
  if (lost_error_ == 0 && any_failed()) retry_elsewhere();
  if (lost_error_ != 0) return fail(Errc::kIo, "writing values", lost_error_);
  drop_failed();
  stretches_.clear();
  return encode_block();
}

// A device that is full may have taken the front of the block, or have an earlier form of it: a
// block by itself, perhaps, that an opening would replay. True when there certainly is none.
bool BatchWriter::erase_block() {
  const Bytes front = block_.first(kBlockSizeBytes);
  std::fill(front.begin(), front.end(), std::byte{0});
  const auto erase = [&] {
    return write_device(*state_.device, state_.geometry.journal_offset_bytes + block_offset_,
                        front);
  };
  auto erased = erase();
  if (!erased && erased.error().code == Errc::kIo && !is_device_lost(erased.error().os_errno))
    erased = erase();
  return erased || (!is_block_there_ && erased.error().code == Errc::kNoSpace);
}

// Checksums, zeroed slack, trailers.
void BatchWriter::prepare(PlannedChange& planned) {
  const Uuid& uuid = state_.geometry.uuid;
  for (PlannedWindow& window : planned.windows) {
    for (PlannedExtent& planned_extent : window.extents) {
      Extent& extent = planned_extent.extent;
      const Bytes padded{planned_extent.data, planned_extent.padded_bytes()};
      const Bytes slack = padded.subspan(extent.size_bytes);
      extent.checksum = extent_checksum(uuid, planned.image.object, extent.stamp,
                                        padded.first(extent.size_bytes));
      std::fill(slack.begin(), slack.end(), std::byte{0});
      if (slack.size() < kTrailerFixedBytes) continue;
      write_trailer(slack,
                    {.object = planned.image.object,
                     .parent = planned.image.parent,
                     .stamp = extent.stamp,
                     .checksum = extent.checksum,
                     .size_bytes = extent.size_bytes,
                     .file_block = extent.file_block,
                     .name = planned.image.name},
                    uuid);
    }
  }
}

void BatchWriter::collect(bool only_failed, bool merge) {
  stretches_.clear();
  for (PlannedChange& planned : batch_.planned()) {
    if (planned.error != 0) continue;
    for (PlannedWindow& window : planned.windows)
      for (PlannedExtent& extent : window.extents)
        if (!only_failed || extent.error != 0) add(extent, merge);
  }
  for (Stretch& stretch : stretches_) {
    stretch.segments.clear();
    for (const PlannedExtent* extent : stretch.extents) {
      const iovec segment{extent->data, extent->padded_bytes()};
      const bool goes_on =
          !stretch.segments.empty() && static_cast<std::byte*>(stretch.segments.back().iov_base) +
                                               stretch.segments.back().iov_len ==
                                           extent->data;
      if (goes_on) {
        stretch.segments.back().iov_len += segment.iov_len;
      } else {
        stretch.segments.push_back(segment);
      }
    }
  }
}

void BatchWriter::add(PlannedExtent& extent, bool merge) {
  const std::uint32_t bytes = extent.padded_bytes();
  const bool joins = merge && !stretches_.empty() &&
                     stretches_.back().next_block == extent.extent.device_block &&
                     stretches_.back().bytes + bytes <= kTransferSizeBytesMax &&
                     stretches_.back().extents.size() < kSegmentsMax;
  if (!joins) {
    stretches_.emplace_back();
    stretches_.back().first_block = extent.extent.device_block;
  }
  Stretch& stretch = stretches_.back();
  stretch.extents.push_back(&extent);
  stretch.bytes += bytes;
  stretch.next_block = extent.extent.device_block + bytes / kBlockSizeBytes;
}

Result<void> BatchWriter::encode_block() {
  // A batch without records (placements, or every change failed) writes an empty block, so that
  // the chain has no gap.
  std::uint32_t count = 0;
  const std::vector<std::byte> records = batch_.encode_records(count);
  const std::uint64_t needed = round_up(kJournalHeaderBytes + records.size(), kBlockSizeBytes);
  const bool again = block_bytes_ != 0;
  if (!again) {
    const auto place = ring_.place(needed);
    if (!place) return fail(Errc::kNoSpace, "the journal is full", ENOSPC);
    block_offset_ = *place;
  } else if (needed > block_bytes_ && ring_.place(needed) != block_offset_) {
    return fail(Errc::kNoSpace, "the journal is full", ENOSPC);
  }
  block_bytes_ = std::max(needed, block_bytes_);
  if (block_.capacity() < block_bytes_) block_ = state_.pool.take_or_heap(block_bytes_);
  const Bytes block = block_.first(block_bytes_);
  std::copy(records.begin(), records.end(), block.begin() + kJournalHeaderBytes);
  const Bytes rest = block.subspan(kJournalHeaderBytes + records.size());
  std::fill(rest.begin(), rest.end(), std::byte{0});
  header_ = {.size_bytes = 0,
             .payload_bytes = static_cast<std::uint32_t>(records.size()),
             .checksum = 0,
             .epoch = ring_.head().epoch,
             .sequence = batch_.sequence(),
             .previous_hash = ring_.head().previous_hash,
             .durable_upto = batch_.durable_upto(),
             .record_count = count};
  seal_journal_block(block, header_, state_.geometry.uuid);
  return {};
}

void BatchWriter::append_block_requests(std::vector<IoRequest>& requests) {
  block_segments_.clear();
  for (std::uint64_t done = 0; done < block_bytes_; done += kTransferSizeBytesMax)
    block_segments_.push_back({block_.data() + done, std::min<std::uint64_t>(kTransferSizeBytesMax,
                                                                             block_bytes_ - done)});
  std::uint64_t offset = state_.geometry.journal_offset_bytes + block_offset_;
  for (const iovec& segment : block_segments_) {
    requests.push_back(
        {.op = IoOp::kWrite, .offset_bytes = offset, .segments = {&segment, 1}, .error = 0});
    offset += segment.iov_len;
  }
}

bool BatchWriter::run(bool with_block) {
  std::vector<IoRequest> requests;
  requests.reserve(stretches_.size() + 2);
  for (Stretch& stretch : stretches_)
    requests.push_back({.op = IoOp::kWrite,
                        .offset_bytes = std::uint64_t{stretch.first_block} * kBlockSizeBytes,
                        .segments = stretch.segments,
                        .error = 0});
  if (with_block) append_block_requests(requests);
  if (requests.empty()) return true;
  state_.run(requests);
  for (const IoRequest& request : requests)
    if (is_device_lost(request.error)) lost_error_ = request.error;
  state_.counters.data_requests.fetch_add(stretches_.size(), std::memory_order_relaxed);
  for (std::size_t i = 0; i < stretches_.size(); ++i)
    for (PlannedExtent* extent : stretches_[i].extents) extent->error = requests[i].error;
  block_error_ = 0;
  for (std::size_t i = stretches_.size(); i < requests.size(); ++i)
    if (requests[i].error != 0) block_error_ = requests[i].error;
  is_block_there_ = is_block_there_ || (with_block && block_error_ == 0);
  return block_error_ == 0;
}

namespace {

int error_of(const PlannedChange& planned) {
  for (const PlannedWindow& window : planned.windows)
    for (const PlannedExtent& extent : window.extents)
      if (extent.error != 0) return extent.error;
  return 0;
}

}  // namespace

bool BatchWriter::any_failed() const {
  for (const PlannedChange& planned : batch_.planned())
    if (planned.error == 0 && error_of(planned) != 0) return true;
  return false;
}

void BatchWriter::report(const PlannedChange& planned, const char* action) {
  state_.counters.write_failures.fetch_add(1, std::memory_order_relaxed);
  FaultRecord fault;
  fault.operation = "write";
  fault.key = planned.image.name;
  for (const PlannedWindow& window : planned.windows)
    for (const PlannedExtent& extent : window.extents)
      if (extent.error != 0 && !fault.slot) fault.slot = state_.slot_of(extent.extent.device_block);
  fault.os_errno = error_of(planned);
  fault.action = action;
  state_.note_fault(std::move(fault));
}

// EIO: the slots are quarantined and the extents written once more in other slots. ENOSPC of a
// thin device is no fault of the slots: the change fails.
void BatchWriter::retry_elsewhere() {
  // What is free was taken by the first attempt; a flush brings back what merely waits for one.
  if (batch_.lacks_slots_to_move()) static_cast<void>(state_.volume->flush_until(UINT64_MAX));
  for (PlannedChange& planned : batch_.planned()) {
    const int error = planned.error == 0 ? error_of(planned) : 0;
    if (error == 0) continue;
    if (error == ENOSPC) {
      report(planned, "the put failed: the device below is full");
      planned.error = ENOSPC;
      continue;
    }
    report(planned, "slots quarantined, written again elsewhere");
    if (!batch_.move_elsewhere(planned)) {
      planned.error = ENOSPC;
      continue;
    }
    state_.counters.rewrites.fetch_add(1, std::memory_order_relaxed);
    prepare(planned);
  }
  collect(true, false);
  run_data();
}

void BatchWriter::drop_failed() {
  for (PlannedChange& planned : batch_.planned()) {
    const int error = planned.error == 0 ? error_of(planned) : 0;
    if (error == 0) continue;
    report(planned, "the put failed");
    if (error != ENOSPC) batch_.quarantine_failed(planned);
    planned.error = error;
  }
}

}  // namespace kvslot
