// One pass over the device, in large pieces; see salvage_scan.h.
#include "core/salvage_scan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <tuple>

#include "core/checkpoint_layout.h"
#include "core/device_io.h"

namespace kvslot {
namespace {

constexpr std::uint64_t kPieceBytes = 4 * kMiB;
// A hostile image could ask for a large read at every block; together they get this many times
// the device.
constexpr std::uint64_t kVerifiedTimesMax = 4;

// Calls `on_block` for every block that can be read; returns the bytes that cannot.
template <typename OnBlock>
std::uint64_t for_each_block(Device& device, const ScanProgress& on_progress, OnBlock on_block) {
  const std::uint64_t end = device.info().size_bytes / kBlockSizeBytes * kBlockSizeBytes;
  const Buffer buffer = Buffer::from_heap(kPieceBytes);
  std::uint64_t unreadable_bytes = 0;
  for (std::uint64_t at = 0; at < end; at += kPieceBytes) {
    const Bytes piece = buffer.first(std::min(kPieceBytes, end - at));
    const bool is_read = read_device(device, at, piece).has_value();
    for (std::size_t done = 0; done < piece.size(); done += kBlockSizeBytes) {
      const Bytes block = piece.subspan(done, kBlockSizeBytes);
      if (is_read || read_device(device, at + done, block)) {
        on_block(at + done, block);
      } else {
        unreadable_bytes += kBlockSizeBytes;
      }
    }
    if (on_progress) on_progress(at + piece.size(), end);
  }
  return unreadable_bytes;
}

// Threads: one thread at a time.
class StructureScan {
 public:
  StructureScan(Device& device, const Uuid& uuid)
      : device_(device), uuid_(uuid), budget_bytes_(kVerifiedTimesMax * device.info().size_bytes) {}

  Found run(const ScanProgress& on_progress) {
    found_.unreadable_bytes =
        for_each_block(device_, on_progress, [&](std::uint64_t offset, ConstBytes block) {
          take_journal_block(offset, block);
          take_chunk(offset, block);
          take_manifest(offset, block);
          take_trailer(offset, block);
        });
    std::ranges::sort(found_.chunks, {}, [](const FoundChunk& chunk) {
      return std::tie(chunk.attempt, chunk.index, chunk.offset_bytes);
    });
    std::ranges::stable_sort(found_.blocks, {},
                             [](const FoundBlock& block) { return block.header.sequence; });
    std::ranges::sort(found_.trailers, [](const FoundTrailer& a, const FoundTrailer& b) {
      if (a.trailer.object != b.trailer.object) return a.trailer.object < b.trailer.object;
      return a.trailer.stamp > b.trailer.stamp;
    });
    return std::move(found_);
  }

 private:
  // Whole structures, where they lie on the device and may be asked for.
  std::optional<Buffer> read_whole(std::uint64_t offset, std::uint64_t size_bytes) {
    if (size_bytes > device_.info().size_bytes - offset || size_bytes > budget_bytes_) return {};
    budget_bytes_ -= size_bytes;
    Buffer buffer = Buffer::from_heap(size_bytes);
    if (!read_device(device_, offset, buffer.first(size_bytes))) return {};
    return buffer;
  }

  void take_journal_block(std::uint64_t offset, ConstBytes block) {
    const auto header = peek_journal_header(block);
    if (!header || header->size_bytes > kGiB) return;
    const auto all = read_whole(offset, header->size_bytes);
    if (all && verify_journal_block(all->first(header->size_bytes), *header, uuid_))
      found_.blocks.push_back({*header, offset});
  }

  void take_chunk(std::uint64_t offset, ConstBytes block) {
    const auto header = peek_chunk_header(block);
    if (!header) return;
    const auto all = read_whole(offset, header->size_bytes);
    const CheckpointId& id = header->checkpoint;
    if (all && open_chunk(all->first(header->size_bytes), id.sequence, header->index, uuid_))
      found_.chunks.push_back({.attempt = Attempt(id.sequence, id.epoch),
                               .replay_from = id.replay_from,
                               .index = header->index,
                               .offset_bytes = offset,
                               .size_bytes = header->size_bytes});
  }

  void take_manifest(std::uint64_t offset, ConstBytes block) {
    const auto manifest = decode_manifest(block, uuid_);
    if (!manifest) return;
    FoundManifests& all = found_.manifests[Attempt(manifest->checkpoint_sequence, manifest->epoch)];
    all.entries_of[manifest->index] = manifest->entries.size();
    if (manifest->next_slot == kNoSlot) all.last = manifest->index;
    if (manifest->index == 0) all.first_at = offset;
  }

  void take_trailer(std::uint64_t offset, ConstBytes block) {
    auto trailer = read_trailer(block, uuid_);
    if (!trailer || trailer->size_bytes == 0 || trailer->size_bytes > kExtentSizeBytesMax) return;
    const std::uint64_t behind = units_of(trailer->size_bytes, kBlockSizeBytes) - 1;
    const std::uint64_t last_block = offset / kBlockSizeBytes;
    if (behind > last_block) return;
    const Extent extent{.file_block = trailer->file_block,
                        .size_bytes = trailer->size_bytes,
                        .device_block = static_cast<std::uint32_t>(last_block - behind),
                        .stamp = trailer->stamp,
                        .checksum = trailer->checksum};
    found_.trailers.push_back({std::move(*trailer), extent});
  }

  Device& device_;
  const Uuid& uuid_;
  std::uint64_t budget_bytes_;
  Found found_;
};

// Collects what structures say about the UUID; nothing of it is verified yet.
class UuidScan {
 public:
  explicit UuidScan(Device& device) : device_(device) {}

  std::optional<Uuid> run(const std::vector<Uuid>& guesses, const ScanProgress& on_progress) {
    for (const Uuid& guess : guesses) ++votes_[guess];
    for_each_block(device_, on_progress, [&](std::uint64_t offset, ConstBytes block) {
      const UuidHint hint = peek_uuid(block);
      if (!hint.is_structure) return;
      if (samples_.size() < kSamplesMax) samples_.push_back(offset);
      if (hint.whole) ++votes_[*hint.whole];
      if (hint.half) ++half_votes_[*hint.half][hint.half_value];
    });
    add_halves();
    std::vector<std::pair<std::uint64_t, Uuid>> order;
    for (const auto& [uuid, count] : votes_) order.emplace_back(count, uuid);
    std::ranges::sort(order, std::greater{});
    if (order.size() > kCandidatesMax) order.resize(kCandidatesMax);
    for (const auto& [count, uuid] : order)
      if (std::ranges::any_of(samples_, [&](std::uint64_t at) { return holds(at, uuid); }))
        return uuid;
    return std::nullopt;
  }

 private:
  static constexpr std::size_t kSamplesMax = 256;
  static constexpr std::size_t kCandidatesMax = 16;

  void add_halves() {
    const auto best = [](const std::map<std::uint64_t, std::uint64_t>& votes) {
      return std::ranges::max_element(votes, {}, [](const auto& vote) { return vote.second; });
    };
    if (half_votes_[0].empty() || half_votes_[1].empty()) return;
    const std::array<std::uint64_t, 2> halves = {best(half_votes_[0])->first,
                                                 best(half_votes_[1])->first};
    Uuid uuid{};
    std::memcpy(uuid.data(), halves.data(), uuid.size());
    ++votes_[uuid];
  }

  [[nodiscard]] bool holds(std::uint64_t offset, const Uuid& uuid) {
    const Buffer buffer = Buffer::from_heap(kChunkSizeBytesMax);
    const Bytes block = buffer.first(kBlockSizeBytes);
    if (!read_device(device_, offset, block)) return false;
    if (decode_manifest(block, uuid) || read_trailer(block, uuid)) return true;
    const std::uint64_t left = device_.info().size_bytes - offset;
    if (const auto chunk = peek_chunk_header(block); chunk && chunk->size_bytes <= left) {
      const Bytes all = buffer.first(chunk->size_bytes);
      return read_device(device_, offset, all) &&
             open_chunk(all, chunk->checkpoint.sequence, chunk->index, uuid);
    }
    const auto header = peek_journal_header(block);
    if (!header || header->size_bytes > kChunkSizeBytesMax || header->size_bytes > left)
      return false;
    const Bytes all = buffer.first(header->size_bytes);
    return read_device(device_, offset, all) && verify_journal_block(all, *header, uuid);
  }

  Device& device_;
  std::map<Uuid, std::uint64_t> votes_;
  std::array<std::map<std::uint64_t, std::uint64_t>, 2> half_votes_;
  std::vector<std::uint64_t> samples_;
};

}  // namespace

std::optional<std::size_t> FoundManifests::chunk_count() const {
  if (!last || entries_of.size() < std::size_t{*last} + 1) return std::nullopt;
  std::size_t count = 0;
  for (const auto& [index, entries] : entries_of)
    if (index <= *last) count += entries;
  return count;
}

Found scan_for_structures(Device& device, const Uuid& uuid, const ScanProgress& on_progress) {
  return StructureScan(device, uuid).run(on_progress);
}

std::optional<Uuid> scan_for_uuid(Device& device, const std::vector<Uuid>& guesses,
                                  const ScanProgress& on_progress) {
  return UuidScan(device).run(guesses, on_progress);
}

}  // namespace kvslot
