// Checkpoint, journal, tail: the reading half of core/LAYOUT.md "Recovery".
#include "core/check_load.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/device_io.h"
#include "core/journal.h"

namespace kvslot {

Failure CheckLoader::load(bool from_previous) {
  cut_at_.reset();
  durable_upto_ = superblock_.current.included_upto;
  std::uint64_t limit = UINT64_MAX;
  while (true) {
    if (auto failure = load_upto(from_previous, limit)) return failure;
    const std::uint64_t included = superblock_.current.included_upto;
    if (next_sequence_ <= included)
      return fmt::format(
          "the journal ends before block {}, but the checkpoint may hold effects of blocks up to "
          "{}",
          next_sequence_, included);
    const auto unwritten = first_unwritten();
    if (!unwritten) return {};
    cut_at_ = unwritten;
    limit = *unwritten - 1;
  }
}

Failure CheckLoader::load_upto(bool from_previous, std::uint64_t limit) {
  const CheckpointRoot& root = from_previous ? superblock_.previous : superblock_.current;
  state_.clear();
  runs_.clear();
  oddities_.clear();
  obstacle_.reset();
  node_records_ = 0;
  blocks_ = 0;
  next_sequence_ = root.replay_from.sequence;
  const auto on_record = [this](Record&& record) {
    if (std::holds_alternative<SetNode>(record)) ++node_records_;
    state_.apply(std::move(record), 0);
  };
  if (auto failure = read_checkpoint(root, on_record)) return failure;
  if (from_previous) {
    const std::uint64_t joint = superblock_.current.included_upto;
    if (auto failure = replay(root.replay_from, std::min(limit, joint))) return failure;
    if (next_sequence_ <= joint) return {};  // the caller says what is missing
  }
  return replay(superblock_.current.replay_from, limit);
}

Failure CheckLoader::probe(const CheckpointRoot& root) {
  std::vector<SlotRun> runs;
  runs.swap(runs_);
  auto failure = read_checkpoint(root, [](Record&&) {});
  runs.swap(runs_);
  if (failure) return failure;
  const std::uint64_t joint = superblock_.current.included_upto;
  std::uint64_t next = root.replay_from.sequence;
  const auto end = read_journal(device_, superblock_.geometry, root.replay_from,
                                [&](const JournalBlock& block) -> Result<bool> {
                                  next = block.header.sequence + 1;
                                  return next <= joint;
                                });
  if (!end) return fmt::format("the journal since cannot be read: {} failed", end.error().step);
  if (next <= joint) return fmt::format("block {} of the journal since", next);
  return {};
}

Failure CheckLoader::read_manifests(const CheckpointRoot& root,
                                    std::vector<ManifestEntry>& entries) {
  const std::uint32_t slot_count = superblock_.geometry.slot_count;
  const Buffer block = Buffer::from_heap(kBlockSizeBytes);
  std::uint32_t slot = root.manifest_slot;
  for (std::uint32_t index = 0; slot != kNoSlot; ++index) {
    const auto where = fmt::format("manifest {} in slot {}", index, slot);
    if (slot >= slot_count || index >= slot_count) return where + ": there is no such slot";
    if (auto ok = read_device(device_, offset_of(slot), block.first(kBlockSizeBytes)); !ok)
      return where + ": " + ok.error().step + " failed";
    const auto manifest = decode_manifest(block.first(kBlockSizeBytes), superblock_.geometry.uuid);
    if (!manifest) return where + ": " + manifest.error().step;
    if (manifest->checkpoint_sequence != root.sequence || manifest->index != index)
      return where + ": it belongs to another checkpoint";
    runs_.push_back({SlotId{slot}, 1});
    entries.insert(entries.end(), manifest->entries.begin(), manifest->entries.end());
    slot = manifest->next_slot;
  }
  return {};
}

Failure CheckLoader::read_checkpoint(const CheckpointRoot& root, const OnRecord& on_record) {
  const Geometry& geometry = superblock_.geometry;
  std::vector<ManifestEntry> entries;
  if (auto failure = read_manifests(root, entries)) return failure;
  const Buffer buffer = Buffer::from_heap(kChunkSizeBytesMax);
  std::vector<std::byte> stream;
  std::uint64_t stream_bytes = 0;
  for (std::uint32_t index = 0; index < entries.size(); ++index) {
    const ManifestEntry& entry = entries[index];
    const auto where = fmt::format("chunk {} in slot {}", index, entry.slot);
    const std::uint64_t slots = units_of(entry.size_bytes, geometry.slot_size_bytes);
    if (std::uint64_t{entry.slot} + slots > geometry.slot_count)
      return where + ": it reaches past the slots";
    const Bytes chunk = buffer.first(entry.size_bytes);
    if (auto ok = read_device(device_, offset_of(entry.slot), chunk); !ok)
      return where + ": " + ok.error().step + " failed";
    const auto payload = open_chunk(chunk, root.sequence, index, geometry.uuid);
    if (!payload) return where + ": " + payload.error().step;
    runs_.push_back({SlotId{entry.slot}, static_cast<std::uint32_t>(slots)});
    stream.insert(stream.end(), payload->begin(), payload->end());
    stream_bytes += payload->size();
    if (auto failure = take_records(stream, stream_bytes - stream.size(), on_record))
      return where + ": " + *failure;
  }
  if (!stream.empty()) return std::string("its last record is cut off");
  if (stream_bytes != root.stream_bytes)
    return fmt::format("its records take {} bytes, but the superblock says {}", stream_bytes,
                       root.stream_bytes);
  return {};
}

// Takes the whole records at the front of the stream and leaves the rest.
Failure CheckLoader::take_records(std::vector<std::byte>& stream, std::uint64_t stream_at,
                                  const OnRecord& on_record) const {
  RecordReader in(stream);
  while (true) {
    auto record = in.next();
    if (!record)
      return fmt::format("record at byte {}: {}", stream_at + in.done_bytes(), record.error().step);
    if (!*record) break;
    on_record(std::move(**record));
  }
  stream.erase(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(in.done_bytes()));
  return {};
}

Failure CheckLoader::replay(const JournalPosition& from, std::uint64_t limit) {
  Failure failure;
  const auto end = read_journal(device_, superblock_.geometry, from,
                                [&](const JournalBlock& block) -> Result<bool> {
                                  if (block.header.sequence > limit) return false;
                                  failure = apply_block(block);
                                  return !failure.has_value();
                                });
  if (failure) return failure;
  if (!end) return fmt::format("the journal cannot be read: {} failed", end.error().step);
  next_sequence_ = end->sequence;
  if (limit != UINT64_MAX) return {};
  const auto damaged = is_chain_damaged(device_, superblock_.geometry, *end);
  if (!damaged) return fmt::format("the journal cannot be read: {} failed", damaged.error().step);
  if (*damaged)
    obstacle_ = fmt::format(
        "journal block {} is damaged, though later ones say that it was durable: what "
        "came after it is lost; mount with -o ro to read what came before",
        end->sequence);
  return {};
}

Failure CheckLoader::apply_block(const JournalBlock& block) {
  const JournalHeader& header = block.header;
  ByteReader in(block.records());
  std::uint32_t count = 0;
  for (; in.left() != 0; ++count) {
    auto record = decode_record(in);
    if (!record)
      return fmt::format("journal block {} is whole, but its record {} cannot be decoded: {}",
                         header.sequence, count, record.error().step);
    state_.apply(std::move(*record), header.sequence);
  }
  if (count != header.record_count)
    oddities_.push_back(fmt::format("journal block {} says that it has {} records and holds {}",
                                    header.sequence, header.record_count, count));
  if (header.durable_upto >= header.sequence)
    oddities_.push_back(fmt::format("journal block {} says that block {} was flushed before it",
                                    header.sequence, header.durable_upto));
  ++blocks_;
  durable_upto_ = std::max(durable_upto_, header.durable_upto);
  state_.forget_tail_upto(durable_upto_);
  return {};
}

// The first block that wrote a value which is still the key's, but is not on the device.
std::optional<std::uint64_t> CheckLoader::first_unwritten() {
  ExtentReader reader(device_, superblock_.geometry);
  std::vector<ExtentToRead> group;
  std::vector<std::uint64_t> sequences;
  std::size_t bytes = 0;
  std::uint64_t first = UINT64_MAX;
  const auto judge_group = [&] {
    reader.read(group);
    for (std::size_t i = 0; i < group.size(); ++i)
      if (is_unwritten(reader, group[i], sequences[i])) first = std::min(first, sequences[i]);
    group.clear();
    sequences.clear();
    bytes = 0;
  };
  for (const TailExtent& tail : state_.tail()) {
    // One outside of the slots cannot be read: core/check_slots.cc reports it.
    if (!state_.owns(tail) || !reader.is_inside(tail.extent)) continue;
    if (is_cut_off(tail.extent)) continue;  // only salvage goes on then, and misses it later
    const std::uint32_t more = ExtentReader::padded_bytes(tail.extent);
    if (bytes + more > ExtentReader::kTogetherBytesMax) judge_group();
    group.push_back({.object = tail.object, .extent = tail.extent});
    sequences.push_back(tail.sequence);
    bytes += more;
  }
  judge_group();
  if (first == UINT64_MAX) return std::nullopt;
  return first;
}

// Once more, alone, where it does not match. What cannot be read at all may be there.
bool CheckLoader::is_unwritten(ExtentReader& reader, ExtentToRead item, std::uint64_t sequence) {
  if (item.verdict == ExtentVerdict::kGood) return false;
  reader.read({&item, 1});
  if (item.verdict == ExtentVerdict::kUnreadable)
    obstacle_ = fmt::format(
        "a value of journal block {} cannot be read, so that nobody knows where the log ends: the "
        "store does not open for writing",
        sequence);
  return item.verdict == ExtentVerdict::kMismatch;
}

}  // namespace kvslot
