// Stores written by hand, through nothing but the layout.
#pragma once

#include <gtest/gtest.h>
#include <kvslot/admin.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint_layout.h"
#include "core/layout.h"
#include "core/records.h"
#include "core/superblocks.h"
#include "tests/support/engine.h"
#include "tests/support/simulated_device.h"

namespace kvslot::testing {

inline constexpr std::uint64_t kDeviceBytes = 32 * kMiB;

// A store written by hand, through nothing but the layout. Manifest in slot 0, chunk in slot 1.
class PlantedStore {
 public:
  PlantedStore() : device({.size_bytes = kDeviceBytes}) {
    FormatOptions options;
    options.seed = 7;
    EXPECT_TRUE(format_device(device, options).has_value());
    superblock = *read_superblock(device);
    superblock.sequence = 5;
    superblock.current = {.manifest_slot = 0,
                          .sequence = 3,
                          .stream_bytes = 0,
                          .node_count = 0,
                          .written_ns = 1,
                          .next_object = 100,
                          .next_stamp = 100,
                          .included_upto = 0,
                          .replay_from = {.epoch = 9, .offset_bytes = 0, .sequence = 1}};
    superblock.previous = superblock.current;
    add(directory(ObjectId::kRoot, ObjectId::kNone, ""));
  }

  static SetNode directory(ObjectId object, ObjectId parent, const std::string& name) {
    NodeImage image;
    image.object = object;
    image.parent = parent;
    image.kind = NodeKind::kDirectory;
    image.name = name;
    return {image};
  }

  // Bytes of a value at a place on the device, as an extent that holds.
  Extent value(std::uint64_t object, std::uint32_t slot, const std::string& text,
               std::uint32_t file_block = 0) {
    Extent extent{.file_block = file_block,
                  .size_bytes = static_cast<std::uint32_t>(text.size()),
                  .device_block = block_of(slot),
                  .stamp = object * 10 + slot,
                  .checksum = 0};
    extent.checksum =
        extent_checksum(superblock.geometry.uuid, ObjectId{object}, extent.stamp, bytes_of(text));
    device.poke(std::uint64_t{extent.device_block} * kBlockSizeBytes, bytes_of(text));
    return extent;
  }

  static SetNode file(std::uint64_t object, std::uint64_t parent, const std::string& name,
                      std::vector<Extent> extents) {
    NodeImage image;
    image.object = ObjectId{object};
    image.parent = ObjectId{parent};
    image.name = name;
    if (!extents.empty())
      image.size_bytes =
          std::uint64_t{extents.back().file_block} * kBlockSizeBytes + extents.back().size_bytes;
    image.extents = std::move(extents);
    return {image};
  }

  void add(const Record& record) {
    encode_record(stream, record);
    if (std::holds_alternative<SetNode>(record)) ++superblock.current.node_count;
  }
  void add_file(std::uint64_t object, const std::string& name, std::uint32_t slot) {
    add(file(object, 1, name, {value(object, slot, "value of " + name)}));
  }

  [[nodiscard]] std::uint32_t block_of(std::uint32_t slot) const {
    return static_cast<std::uint32_t>(superblock.geometry.slots_offset_bytes / kBlockSizeBytes) +
           slot * superblock.geometry.blocks_per_slot();
  }
  [[nodiscard]] std::uint64_t offset_of(std::uint32_t slot) const {
    return std::uint64_t{block_of(slot)} * kBlockSizeBytes;
  }

  void write_checkpoint(std::uint32_t manifest_slot = 0) {
    std::vector<std::byte> chunk(round_up(kChunkHeaderBytes + stream.size(), kBlockSizeBytes));
    std::copy(stream.begin(), stream.end(), chunk.begin() + kChunkHeaderBytes);
    const Uuid& uuid = superblock.geometry.uuid;
    const JournalPosition& from = superblock.current.replay_from;
    seal_chunk(chunk,
               {.sequence = superblock.current.sequence,
                .epoch = from.epoch,
                .replay_from = from.sequence},
               0, static_cast<std::uint32_t>(stream.size()), uuid);
    device.poke(offset_of(manifest_slot + 1), chunk);
    const Manifest manifest{.checkpoint_sequence = superblock.current.sequence,
                            .epoch = from.epoch,
                            .index = 0,
                            .next_slot = kNoSlot,
                            .entries = {{.slot = manifest_slot + 1,
                                         .size_bytes = static_cast<std::uint32_t>(chunk.size())}}};
    device.poke(offset_of(manifest_slot), encode_manifest(manifest, uuid));
    superblock.current.manifest_slot = manifest_slot;
    superblock.current.stream_bytes = stream.size();
  }
  void write_superblocks() {
    for (const std::uint64_t offset : superblock_offsets(kDeviceBytes))
      device.poke(offset, encode_superblock(superblock));
  }
  void write() {
    write_checkpoint();
    write_superblocks();
  }

  void write_block(std::vector<std::byte> records, std::uint32_t count,
                   std::uint64_t durable_upto = 0) {
    std::vector<std::byte> block(round_up(kJournalHeaderBytes + records.size(), kBlockSizeBytes));
    std::copy(records.begin(), records.end(), block.begin() + kJournalHeaderBytes);
    JournalHeader header{.size_bytes = 0,
                         .payload_bytes = static_cast<std::uint32_t>(records.size()),
                         .checksum = 0,
                         .epoch = superblock.current.replay_from.epoch,
                         .sequence = next_sequence_++,
                         .previous_hash = previous_hash_,
                         .durable_upto = durable_upto,
                         .record_count = count};
    seal_journal_block(block, header, superblock.geometry.uuid);
    device.poke(superblock.geometry.journal_offset_bytes + next_offset_, block);
    next_offset_ += block.size();
    previous_hash_ = header.checksum;
  }
  void write_block(const std::vector<Record>& records, std::uint64_t durable_upto = 0) {
    std::vector<std::byte> bytes;
    for (const Record& record : records) encode_record(bytes, record);
    write_block(std::move(bytes), static_cast<std::uint32_t>(records.size()), durable_upto);
  }

  // What an opening does that ends the log in front of a block: blocks from here on are of another
  // epoch, and are written behind those that are there.
  void begin_epoch(std::uint64_t epoch, std::uint64_t sequence) {
    superblock.current.replay_from.epoch = epoch;
    superblock.current.replay_from.sequence = sequence;
    next_sequence_ = sequence;
  }

  SimulatedDevice device;
  Superblock superblock;
  std::vector<std::byte> stream;

 private:
  std::uint64_t next_sequence_ = 1;
  std::uint64_t next_offset_ = 0;
  std::uint64_t previous_hash_ = 0;
};

}  // namespace kvslot::testing
