// See image_input.h.
#include "tests/fuzz/support/image_input.h"

#include <algorithm>
#include <iterator>

#include "core/checkpoint_layout.h"
#include "core/codec.h"
#include "core/layout.h"
#include "core/records.h"
#include "core/superblocks.h"
#include "tests/support/seal.h"

namespace kvslot::testing {
namespace {

constexpr std::size_t kStreamBytesMax = 96 * kKiB;
constexpr std::size_t kBlocksMax = 16;
constexpr std::size_t kBlockRecordBytesMax = 32 * kKiB;
constexpr std::size_t kPatchesMax = 32;
constexpr std::size_t kRecordPrefixBytes = 5;  // type, size of the body
constexpr std::uint64_t kEpoch = 9;

// Blocks of the device with bytes in them, for extents to name.
constexpr std::uint64_t kValuesFrom = 2096, kValuesEnd = 2256;

// Which slots hold what, with slots of 4 KiB and of 1 MiB. Values take what is behind them.
struct Places {
  std::uint32_t manifest, chunk, previous_manifest, previous_chunk;
};
constexpr Places kSmallPlaces = {0, 1, 40, 41};
constexpr Places kLargePlaces = {0, 1, 3, 4};

// Formatted, and with bytes in all that values may take.
const SimulatedDevice& base_device(bool large_slots) {
  const auto make = [](std::uint32_t slot_size_bytes) {
    auto device = format_image(slot_size_bytes);
    std::vector<std::byte> bytes(64 * kKiB);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
    for (std::uint64_t block = kValuesFrom; block < kValuesEnd; block += 16)
      device->poke(block * kBlockSizeBytes, bytes);
    return device;
  };
  static const auto small = make(4096);
  static const auto large = make(1 << 20);
  return large_slots ? *large : *small;
}

std::uint64_t count_nodes(ConstBytes stream) {
  std::uint64_t count = 0;
  for (const auto& record : split_records(stream))
    if (record.size() >= kRecordPrefixBytes && record[0] == std::byte{1}) ++count;
  return count;
}

// Gives every extent of a record the checksum of what is at its place.
class ExtentSealer {
 public:
  ExtentSealer(const SimulatedDevice& device, const Uuid& uuid) : device_(device), uuid_(uuid) {}

  [[nodiscard]] std::vector<std::byte> seal(ConstBytes stream) const {
    std::vector<std::byte> sealed;
    for (const auto& piece : split_records(stream)) {
      ByteReader in(piece);
      auto record = decode_record(in);
      if (!record || in.left() != 0) {
        sealed.insert(sealed.end(), piece.begin(), piece.end());
        continue;
      }
      if (auto* set = std::get_if<SetNode>(&*record))
        for (Extent& extent : set->image.extents) seal(set->image.object, extent);
      if (auto* patch = std::get_if<PatchContent>(&*record))
        for (auto& window : patch->windows)
          for (Extent& extent : window.extents) seal(patch->object, extent);
      encode_record(sealed, *record);
    }
    return sealed;
  }

 private:
  void seal(ObjectId object, Extent& extent) const {
    const std::uint64_t start = std::uint64_t{extent.device_block} * kBlockSizeBytes;
    if (start + extent.size_bytes > kFuzzImageBytes) return;
    std::vector<std::byte> bytes(extent.size_bytes);
    device_.peek(start, bytes);
    extent.checksum = extent_checksum(uuid_, object, extent.stamp, bytes);
  }

  const SimulatedDevice& device_;
  const Uuid& uuid_;
};

// Threads: one thread at a time.
class ImageBuilder {
 public:
  explicit ImageBuilder(const ImageInput& input)
      : input_(input),
        places_(has(ImageInput::kLargeSlots) ? kLargePlaces : kSmallPlaces),
        device_(base_device(has(ImageInput::kLargeSlots)).survivor(1, CrashMode::kAll)),
        superblock_(*read_superblock(*device_)),
        stream_(input.stream) {
    if (has(ImageInput::kSealsExtents))
      stream_ = ExtentSealer(*device_, superblock_.geometry.uuid).seal(stream_);
  }

  std::unique_ptr<SimulatedDevice> build() {
    superblock_.sequence = 5;
    superblock_.clean = has(ImageInput::kClean);
    superblock_.current = {.manifest_slot = places_.manifest,
                           .sequence = 3,
                           .stream_bytes = stream_.size(),
                           .node_count = count_nodes(stream_),
                           .written_ns = 1,
                           .next_object = 1000,
                           .next_stamp = 1'000'000,
                           .included_upto = 0,
                           .replay_from = {.epoch = kEpoch, .offset_bytes = 0, .sequence = 1}};
    superblock_.previous = superblock_.current;
    if (has(ImageInput::kHasPrevious)) {
      superblock_.previous.sequence = 2;
      superblock_.previous.manifest_slot = places_.previous_manifest;
      write_checkpoint(superblock_.previous, places_.previous_chunk, false);
    }
    write_checkpoint(superblock_.current, places_.chunk, true);
    write_blocks();
    write_superblocks();
    return std::move(device_);
  }

 private:
  [[nodiscard]] bool has(ImageInput::Flag flag) const { return (input_.flags & flag) != 0; }
  [[nodiscard]] std::uint64_t offset_of(std::uint32_t slot) const {
    return superblock_.geometry.slots_offset_bytes +
           std::uint64_t{slot} * superblock_.geometry.slot_size_bytes;
  }

  void patch(HeaderPatch::Target target, std::size_t index, Bytes header) const {
    for (const HeaderPatch& patch : input_.patches) {
      const std::size_t width = std::size_t{1} << (patch.width_log & 3);
      if (patch.target != target || patch.index != index) continue;
      store_number(header, patch.offset_bytes % (header.size() - width + 1), patch.value, width);
    }
  }

  void write_checkpoint(const CheckpointRoot& root, std::uint32_t slot, bool patched) {
    const Uuid& uuid = superblock_.geometry.uuid;
    const std::size_t middle = has(ImageInput::kTwoChunks) ? stream_.size() / 2 : 0;
    Manifest manifest{.checkpoint_sequence = root.sequence, .entries = {}};
    for (const ConstBytes payload :
         {ConstBytes(stream_).first(middle), ConstBytes(stream_).subspan(middle)}) {
      if (payload.empty() && middle == 0 && manifest.entries.empty() && !stream_.empty()) continue;
      if (payload.empty() && !manifest.entries.empty()) continue;
      const auto index = static_cast<std::uint32_t>(manifest.entries.size());
      std::vector<std::byte> chunk(round_up(kChunkHeaderBytes + payload.size(), kBlockSizeBytes));
      std::copy(payload.begin(), payload.end(), chunk.begin() + kChunkHeaderBytes);
      seal_chunk(chunk, {.sequence = root.sequence}, index,
                 static_cast<std::uint32_t>(payload.size()), uuid);
      if (patched) {
        patch(HeaderPatch::Target::kChunk, index, Bytes(chunk).first(kChunkHeaderBytes));
        seal_chunk_as_it_is(chunk, uuid);
      }
      device_->poke(offset_of(slot), chunk);
      manifest.entries.push_back({slot, static_cast<std::uint32_t>(chunk.size())});
      slot +=
          static_cast<std::uint32_t>(units_of(chunk.size(), superblock_.geometry.slot_size_bytes));
    }
    std::vector<std::byte> block = encode_manifest(manifest, uuid);
    if (patched) {
      patch(HeaderPatch::Target::kManifest, 0, Bytes(block).first(128));
      seal_manifest(block, uuid);
    }
    device_->poke(offset_of(root.manifest_slot), block);
  }

  void write_blocks() {
    const Uuid& uuid = superblock_.geometry.uuid;
    std::uint64_t previous_hash = 0, offset = 0, sequence = 1;
    for (const auto& given : input_.blocks) {
      const auto records =
          has(ImageInput::kSealsExtents) ? ExtentSealer(*device_, uuid).seal(given) : given;
      std::vector<std::byte> block(round_up(kJournalHeaderBytes + records.size(), kBlockSizeBytes));
      std::copy(records.begin(), records.end(), block.begin() + kJournalHeaderBytes);
      JournalHeader header{
          .payload_bytes = static_cast<std::uint32_t>(records.size()),
          .epoch = kEpoch,
          .sequence = sequence++,
          .previous_hash = previous_hash,
          .durable_upto = has(ImageInput::kFlushedBlocks) ? sequence - 2 : 0,
          .record_count = static_cast<std::uint32_t>(split_records(records).size())};
      seal_journal_block(block, header, uuid);
      patch(HeaderPatch::Target::kJournal, sequence - 2, Bytes(block).first(kJournalHeaderBytes));
      seal_journal(block, uuid);
      previous_hash = load_number(block, 8);
      device_->poke(superblock_.geometry.journal_offset_bytes + offset, block);
      offset += block.size();
    }
  }

  void write_superblocks() {
    constexpr std::size_t kMeaningBytes = 384;
    const std::vector<std::byte> plain = encode_superblock(superblock_);
    std::vector<std::byte> patched = plain;
    patch(HeaderPatch::Target::kSuperblock, 0, Bytes(patched).subspan(16, kMeaningBytes - 16));
    seal_superblock(patched);
    const auto offsets = superblock_offsets(kFuzzImageBytes);
    for (std::size_t copy = 0; copy < offsets.size(); ++copy)
      device_->poke(offsets[copy], copy == 0 || !has(ImageInput::kOneCopy) ? patched : plain);
  }

  const ImageInput& input_;
  const Places places_;
  std::unique_ptr<SimulatedDevice> device_;
  Superblock superblock_;
  std::vector<std::byte> stream_;
};

std::vector<std::byte> copy_of(ConstBytes bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

ImageInput ImageInput::parse(ConstBytes bytes) {
  ByteReader in(bytes);
  ImageInput input;
  input.flags = in.number<std::uint8_t>();
  const auto patches = std::min<std::size_t>(in.number<std::uint8_t>(), kPatchesMax);
  for (std::size_t i = 0; i < patches && in.ok(); ++i) {
    HeaderPatch patch;
    patch.target = static_cast<HeaderPatch::Target>(in.number<std::uint8_t>() & 3);
    patch.index = in.number<std::uint8_t>();
    patch.offset_bytes = in.number<std::uint16_t>();
    patch.width_log = in.number<std::uint8_t>() & 3;
    patch.value = in.number<std::uint64_t>();
    if (in.ok()) input.patches.push_back(patch);
  }
  const auto take = [&in](std::size_t wanted, std::size_t max) {
    return copy_of(in.bytes(std::min({wanted, in.left(), max})));
  };
  input.stream = take(in.number<std::uint32_t>(), kStreamBytesMax);
  while (in.ok() && in.left() != 0 && input.blocks.size() < kBlocksMax)
    input.blocks.push_back(take(in.number<std::uint16_t>(), kBlockRecordBytesMax));
  return input;
}

std::vector<std::byte> ImageInput::serialize() const {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  out.number(flags);
  out.number(static_cast<std::uint8_t>(patches.size()));
  for (const HeaderPatch& patch : patches) {
    out.number(patch.target);
    out.number(patch.index);
    out.number(patch.offset_bytes);
    out.number(patch.width_log);
    out.number(patch.value);
  }
  out.number(static_cast<std::uint32_t>(stream.size()));
  out.bytes(stream);
  for (const auto& block : blocks) {
    out.number(static_cast<std::uint16_t>(block.size()));
    out.bytes(block);
  }
  return bytes;
}

std::unique_ptr<SimulatedDevice> ImageInput::build() const { return ImageBuilder(*this).build(); }

std::vector<std::vector<std::byte>> split_records(ConstBytes stream) {
  std::vector<std::vector<std::byte>> records;
  while (stream.size() >= kRecordPrefixBytes) {
    const std::uint64_t size = kRecordPrefixBytes + load_number(stream, 1, 4);
    if (size > stream.size()) break;
    records.push_back(copy_of(stream.first(size)));
    stream = stream.subspan(size);
  }
  if (!stream.empty()) records.push_back(copy_of(stream));
  return records;
}

void fix_record_size(std::vector<std::byte>& record) {
  if (record.size() >= kRecordPrefixBytes)
    store_number(record, 1, record.size() - kRecordPrefixBytes, 4);
}

}  // namespace kvslot::testing
