// Records of what is left. See salvage_rebuild.h.
#include "core/salvage_rebuild.h"

#include <algorithm>

#include "core/checkpoint_layout.h"
#include "core/device_io.h"
#include "core/salvage_journal.h"

namespace kvslot {
namespace {

// The size of the record in front; 0 where it is not all there, nothing where this is no record.
std::optional<std::size_t> whole_record(ConstBytes bytes) {
  RecordReader in(bytes);
  if (!in.next()) return std::nullopt;
  return in.done_bytes();
}

// Where records begin again: two in a row, or one that ends the bytes, are no accident.
std::size_t find_record(ConstBytes bytes, std::size_t from) {
  constexpr std::uint64_t kTriedBytesMax = 64 * kMiB;  // a hostile chunk must not take for ever
  std::uint64_t tried_bytes = 0;
  for (std::size_t at = from; at < bytes.size() && tried_bytes < kTriedBytesMax; ++at) {
    tried_bytes += record_size(bytes.subspan(at));
    const auto first = whole_record(bytes.subspan(at));
    if (!first || *first == 0) continue;
    const ConstBytes behind = bytes.subspan(at + *first);
    if (behind.empty() || whole_record(behind).value_or(0) != 0) return at;
  }
  return bytes.size();
}

// The stream of one checkpoint's chunks, some of which may be missing.
// Threads: one thread at a time.
class ChunkStream {
 public:
  explicit ChunkStream(OnRecord on_record) : on_record_(std::move(on_record)) {}

  void add(const FoundChunk& chunk, ConstBytes payload) {
    const bool goes_on = attempt_ == chunk.attempt;
    // Written again where the first place was bad.
    if (goes_on && chunk.index + 1 == next_index_ && chunk.attempt.epoch != 0) return;
    const bool follows = chunk.index == 0 || (goes_on && chunk.index == next_index_ && is_whole_);
    if (!follows || chunk.index == 0) rest_.clear();
    rest_.insert(rest_.end(), payload.begin(), payload.end());
    if (!follows) rest_.erase(rest_.begin(), rest_.begin() + offset(find_record(rest_, 0)));
    attempt_ = chunk.attempt;
    next_index_ = chunk.index + 1;
    take();
  }

 private:
  static std::ptrdiff_t offset(std::size_t bytes) { return static_cast<std::ptrdiff_t>(bytes); }

  void take() {
    std::size_t done = 0;
    is_whole_ = true;
    while (done < rest_.size()) {
      RecordReader in(ConstBytes(rest_).subspan(done));
      auto record = in.next();
      if (record && !*record) break;
      if (record) on_record_(std::move(**record));
      done = record ? done + in.done_bytes() : find_record(rest_, done + 1);
    }
    rest_.erase(rest_.begin(), rest_.begin() + offset(done));
  }

  OnRecord on_record_;
  std::vector<std::byte> rest_;
  std::optional<Attempt> attempt_;
  std::uint32_t next_index_ = 0;
  bool is_whole_ = false;
};

// Attempts behind the checkpoint that a later opening went by were not completed before it, and may
// hold what it had cut off. Nothing where no superblock tells.
class GivenUp {
 public:
  GivenUp(const Found& found, const Superblock* superblock) {
    if (superblock == nullptr || superblock->current.manifest_slot == kNoSlot) return;
    opening_rank_ = epoch_rank(superblock->current.replay_from.epoch);
    const Geometry& geometry = superblock->geometry;
    const std::uint64_t offset =
        geometry.slots_offset_bytes +
        std::uint64_t{superblock->current.manifest_slot} * geometry.slot_size_bytes;
    for (const auto& [attempt, manifests] : found.manifests)
      if (manifests.first_at == offset) current_ = attempt;
  }
  [[nodiscard]] bool contains(const Attempt& attempt) const {
    return current_ && attempt > *current_ && attempt.rank < opening_rank_;
  }

 private:
  std::optional<Attempt> current_;
  std::uint64_t opening_rank_ = 0;
};

// The first chunk of the newest attempt of which every manifest and chunk was found; null where
// there is none.
const FoundChunk* newest_whole(const Found& found, const GivenUp& given_up) {
  for (auto it = found.manifests.rbegin(); it != found.manifests.rend(); ++it) {
    if (given_up.contains(it->first)) continue;
    const auto count = it->second.chunk_count();
    const auto chunks = std::ranges::equal_range(found.chunks, it->first, {}, &FoundChunk::attempt);
    if (!count || chunks.empty()) continue;
    std::size_t next = 0;
    for (const FoundChunk& chunk : chunks)
      if (chunk.index == next) ++next;
    if (next >= *count) return &chunks.front();
  }
  return nullptr;
}

// An opening whose checkpoint failed may have gone on in the epoch before, behind a block that
// later ones call flushed. Of what a new epoch cut off, nothing says that.
bool has_log_gone_on(const Found& found, const FoundChunk& whole) {
  return std::ranges::any_of(found.blocks, [&](const FoundBlock& block) {
    const JournalHeader& header = block.header;
    return epoch_rank(header.epoch) < whole.attempt.rank &&
           header.durable_upto >= whole.replay_from && header.durable_upto < header.sequence;
  });
}

// Where the log goes on behind a checkpoint, as superblock and chunks say.
std::vector<LogStart> known_starts(const Found& found, const Superblock* superblock,
                                   const FoundChunk* whole) {
  std::vector<LogStart> starts;
  if (superblock != nullptr)
    for (const CheckpointRoot* root : {&superblock->current, &superblock->previous})
      starts.push_back({root->replay_from.epoch, root->replay_from.sequence});
  if (whole != nullptr && whole->attempt.epoch != 0 && !has_log_gone_on(found, *whole))
    starts.push_back({whole->attempt.epoch, whole->replay_from});
  return starts;
}

// Stamps up to this one had been given out when the checkpoint was written; 0: not known.
std::uint64_t stamps_before(const Superblock* superblock, const FoundChunk* whole) {
  if (superblock == nullptr || whole == nullptr) return 0;
  for (const CheckpointRoot* root : {&superblock->current, &superblock->previous})
    if (root->sequence == whole->attempt.sequence && root->next_stamp != 0)
      return root->next_stamp - 1;
  return 0;
}

std::uint64_t replay_from(const Superblock* superblock, const FoundChunk* whole) {
  if (whole == nullptr) return 0;
  if (superblock != nullptr)
    for (const CheckpointRoot* root : {&superblock->current, &superblock->previous})
      if (root->sequence == whole->attempt.sequence && whole->attempt.epoch == 0)
        return root->replay_from.sequence;
  return whole->replay_from;
}

}  // namespace

std::uint32_t window_bytes_of(Device& device, const Found& found) {
  std::uint32_t window_bytes = 0;
  const OnRecord look = [&](Record&& record) {
    const auto* patch = std::get_if<PatchContent>(&record);
    if (patch == nullptr) return;
    for (const auto& window : patch->windows) {
      if (window.window == 0 || window.extents.empty()) continue;
      const std::uint64_t start = std::uint64_t{window.extents[0].file_block} * kBlockSizeBytes;
      for (std::uint32_t size = kExtentSizeBytesMax; size <= kSlotSizeBytesMax; size *= 2)
        if (start / size == window.window) window_bytes = size;
    }
  };
  for (const FoundBlock& block : found.blocks) for_each_record(device, block, look);
  return window_bytes == 0 ? kExtentSizeBytesMax : window_bytes;
}

Rebuilt rebuild_state(Device& device, const Found& found, const Superblock* superblock,
                      CheckedState& state) {
  Rebuilt rebuilt;
  std::uint64_t newest_stamp = 0;
  const OnRecord apply = [&](Record&& record) {
    for_each_stamp(record, [&](std::uint64_t s) { newest_stamp = std::max(newest_stamp, s); });
    if (const auto* gone = std::get_if<RemoveNode>(&record))
      rebuilt.removed.insert(static_cast<std::uint64_t>(gone->object));
    if (const auto* set = std::get_if<SetNode>(&record)) {
      rebuilt.removed.erase(static_cast<std::uint64_t>(set->image.object));
      rebuilt.said_at[static_cast<std::uint64_t>(set->image.object)] = newest_stamp;
    }
    if (const auto* patch = std::get_if<PatchContent>(&record))
      rebuilt.said_at[static_cast<std::uint64_t>(patch->object)] = newest_stamp;
    state.apply(std::move(record), 0);
  };
  const GivenUp given_up(found, superblock);
  const FoundChunk* const whole = newest_whole(found, given_up);
  rebuilt.has_checkpoint = whole != nullptr;
  ChunkStream stream(apply);
  const Buffer buffer = Buffer::from_heap(kChunkSizeBytesMax);
  for (const FoundChunk& chunk : found.chunks) {
    // What older ones say may have been removed since.
    if (whole != nullptr && chunk.attempt < whole->attempt) continue;
    if (given_up.contains(chunk.attempt)) continue;
    const Bytes bytes = buffer.first(chunk.size_bytes);
    if (!read_device(device, chunk.offset_bytes, bytes)) continue;
    const auto header = peek_chunk_header(bytes);
    if (header) stream.add(chunk, header->payload(bytes));
  }
  const SortedLog log = sort_log(device, found.blocks, known_starts(found, superblock, whole));
  const std::uint64_t from = replay_from(superblock, whole);
  // A whole checkpoint says all of its values later than what blocks before it say.
  for (const FoundBlock& block : log.in_force)
    if (block.header.sequence < from)
      for_each_stamp(device, block,
                     [&](std::uint64_t s) { newest_stamp = std::max(newest_stamp, s); });
  newest_stamp = std::max(newest_stamp, stamps_before(superblock, whole));
  if (whole != nullptr)
    for (auto said = rebuilt.said_at.begin(); said != rebuilt.said_at.end(); ++said)
      said.value() = newest_stamp;
  for (const FoundBlock& block : log.in_force)
    if (block.header.sequence >= from) for_each_record(device, block, apply);
  for (const FoundBlock& block : log.cut_off)
    for_each_stamp(device, block, [&](std::uint64_t stamp) { rebuilt.given_up.insert(stamp); });
  return rebuilt;
}

}  // namespace kvslot
