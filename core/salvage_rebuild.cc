// Records of what is left. See salvage_rebuild.h.
#include "core/salvage_rebuild.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "core/device_io.h"
#include "core/journal.h"

namespace kvslot {
namespace {

constexpr std::size_t kPrefixBytes = 5;  // of a record: type, size of the body

using OnRecord = std::function<void(Record&&)>;

// Of the record at the front, 0 where it is not all there.
std::size_t size_of_record(ConstBytes bytes) {
  if (bytes.size() < kPrefixBytes) return 0;
  std::uint32_t body_bytes = 0;
  std::memcpy(&body_bytes, bytes.data() + 1, sizeof body_bytes);
  return bytes.size() - kPrefixBytes < body_bytes ? 0 : kPrefixBytes + body_bytes;
}

// Takes one record from the front of `bytes`; its size, 0 where it is not all there, nothing where
// this is no record.
std::optional<std::size_t> take_record(ConstBytes bytes, const OnRecord& on_record) {
  const std::size_t size = size_of_record(bytes);
  if (size == 0) return 0;
  ByteReader in(bytes.first(size));
  auto record = decode_record(in);
  if (!record) return std::nullopt;
  on_record(std::move(*record));
  return size;
}

// Where records begin again: two in a row, or one that ends the bytes, are no accident.
std::size_t find_record(ConstBytes bytes, std::size_t from) {
  constexpr std::uint64_t kTriedBytesMax = 64 * kMiB;  // a hostile chunk must not take for ever
  const OnRecord ignore = [](Record&&) {};
  std::uint64_t tried_bytes = 0;
  for (std::size_t at = from; at < bytes.size() && tried_bytes < kTriedBytesMax; ++at) {
    tried_bytes += size_of_record(bytes.subspan(at));
    const auto first = take_record(bytes.subspan(at), ignore);
    if (!first || *first == 0) continue;
    const ConstBytes behind = bytes.subspan(at + *first);
    const auto second = take_record(behind, ignore);
    if (behind.empty() || (second && *second != 0)) return at;
  }
  return bytes.size();
}

// The stream of one checkpoint's chunks, some of which may be missing.
// Threads: one thread at a time.
class ChunkStream {
 public:
  explicit ChunkStream(OnRecord on_record) : on_record_(std::move(on_record)) {}

  void add(std::uint64_t sequence, std::uint32_t index, ConstBytes payload) {
    const bool follows = index == 0 || (sequence == sequence_ && index == next_index_ && is_whole_);
    if (!follows || index == 0) rest_.clear();
    rest_.insert(rest_.end(), payload.begin(), payload.end());
    if (!follows) rest_.erase(rest_.begin(), rest_.begin() + offset(find_record(rest_, 0)));
    sequence_ = sequence;
    next_index_ = index + 1;
    take();
  }

 private:
  static std::ptrdiff_t offset(std::size_t bytes) { return static_cast<std::ptrdiff_t>(bytes); }

  void take() {
    std::size_t done = 0;
    is_whole_ = true;
    while (done < rest_.size()) {
      const auto size = take_record(ConstBytes(rest_).subspan(done), on_record_);
      if (size && *size == 0) break;
      done = size ? done + *size : find_record(rest_, done + 1);
    }
    rest_.erase(rest_.begin(), rest_.begin() + offset(done));
  }

  OnRecord on_record_;
  std::vector<std::byte> rest_;
  std::uint64_t sequence_ = 0;
  std::uint32_t next_index_ = 0;
  bool is_whole_ = false;
};

// The newest checkpoint of which every manifest and chunk was found.
std::optional<std::uint64_t> newest_whole(const Found& found) {
  for (auto it = found.manifests.rbegin(); it != found.manifests.rend(); ++it) {
    const auto count = it->second.chunk_count();
    if (!count) continue;
    std::size_t next = 0;
    for (const FoundChunk& chunk : found.chunks)
      if (chunk.sequence == it->first && chunk.index == next) ++next;
    if (next >= *count) return it->first;
  }
  return std::nullopt;
}

void for_each_block(Device& device, const Found& found, std::uint64_t from_sequence,
                    const OnRecord& on_record) {
  for (const FoundBlock& block : found.blocks) {
    if (block.header.sequence < from_sequence) continue;
    const Buffer buffer = Buffer::from_heap(block.header.size_bytes);
    const Bytes bytes = buffer.first(block.header.size_bytes);
    if (!read_device(device, block.offset_bytes, bytes)) continue;
    ConstBytes records = ConstBytes(bytes).subspan(kJournalHeaderBytes, block.header.payload_bytes);
    while (const auto size = take_record(records, on_record)) {
      if (*size == 0) break;
      records = records.subspan(*size);
    }
  }
}

// Of blocks of one sequence, those of the later opening come last: its stamps are higher.
std::vector<FoundBlock> in_order(Device& device, const Found& found) {
  std::map<std::uint64_t, std::uint64_t> newest_stamp;  // by epoch
  for (const FoundBlock& block : found.blocks) {
    std::uint64_t& newest = newest_stamp[block.header.epoch];
    const auto note = [&](const std::vector<Extent>& extents) {
      for (const Extent& extent : extents) newest = std::max(newest, extent.stamp);
    };
    Found one;
    one.blocks.push_back(block);
    for_each_block(device, one, 0, [&](Record&& record) {
      if (const auto* set = std::get_if<SetNode>(&record)) note(set->image.extents);
      if (const auto* patch = std::get_if<PatchContent>(&record))
        for (const auto& window : patch->windows) note(window.extents);
    });
  }
  std::vector<FoundBlock> blocks = found.blocks;
  std::ranges::stable_sort(blocks, [&](const FoundBlock& a, const FoundBlock& b) {
    if (a.header.sequence != b.header.sequence) return a.header.sequence < b.header.sequence;
    return newest_stamp[a.header.epoch] < newest_stamp[b.header.epoch];
  });
  return blocks;
}

std::uint64_t replay_from(const Superblock* superblock, std::optional<std::uint64_t> checkpoint) {
  if (superblock == nullptr || !checkpoint) return 0;
  for (const CheckpointRoot* root : {&superblock->current, &superblock->previous})
    if (root->sequence == *checkpoint) return root->replay_from.sequence;
  return 0;
}

}  // namespace

std::uint32_t window_bytes_of(Device& device, const Found& found) {
  std::uint32_t window_bytes = 0;
  for_each_block(device, found, 0, [&](Record&& record) {
    const auto* patch = std::get_if<PatchContent>(&record);
    if (patch == nullptr) return;
    for (const auto& window : patch->windows) {
      if (window.window == 0 || window.extents.empty()) continue;
      const std::uint64_t start = std::uint64_t{window.extents[0].file_block} * kBlockSizeBytes;
      for (std::uint32_t size = kExtentSizeBytesMax; size <= kSlotSizeBytesMax; size *= 2)
        if (start / size == window.window) window_bytes = size;
    }
  });
  return window_bytes == 0 ? kExtentSizeBytesMax : window_bytes;
}

Rebuilt rebuild_state(Device& device, const Found& found, const Superblock* superblock,
                      CheckedState& state) {
  Rebuilt rebuilt;
  const OnRecord apply = [&](Record&& record) {
    if (const auto* gone = std::get_if<RemoveNode>(&record))
      rebuilt.removed.insert(static_cast<std::uint64_t>(gone->object));
    if (const auto* set = std::get_if<SetNode>(&record))
      rebuilt.removed.erase(static_cast<std::uint64_t>(set->image.object));
    state.apply(std::move(record), 0);
  };
  const auto whole = newest_whole(found);
  rebuilt.has_checkpoint = whole.has_value();
  ChunkStream stream(apply);
  const Buffer buffer = Buffer::from_heap(kChunkSizeBytesMax);
  for (const FoundChunk& chunk : found.chunks) {
    if (whole && chunk.sequence < *whole) continue;  // what it says may have been removed since
    const Bytes bytes = buffer.first(chunk.size_bytes);
    if (!read_device(device, chunk.offset_bytes, bytes)) continue;
    const auto header = peek_chunk_header(bytes);
    if (header) stream.add(chunk.sequence, chunk.index, header->payload(bytes));
  }
  Found ordered;
  ordered.blocks = in_order(device, found);
  for_each_block(device, ordered, replay_from(superblock, whole), apply);
  return rebuilt;
}

}  // namespace kvslot
