// A small image described by few bytes: the records of its checkpoint and of each journal block,
// and changes to the headers around them. Everything is sealed when it is built, so that what is
// judged is what stands behind the checksums.
#pragma once

#include <kvslot/options.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/fuzz/support/formatted_image.h"

namespace kvslot::testing {

// A number written over a field of a header, before it is sealed.
struct HeaderPatch {
  enum class Target : std::uint8_t { kSuperblock, kManifest, kChunk, kJournal };
  Target target = Target::kSuperblock;
  std::uint8_t index = 0;  // which chunk or journal block
  std::uint16_t offset_bytes = 0;
  std::uint8_t width_log = 0;  // 1, 2, 4 or 8 bytes
  std::uint64_t value = 0;
};

struct ImageInput {
  enum Flag : std::uint8_t {
    kClean = 1,           // closed cleanly
    kSealsExtents = 2,    // checksums of values are made true
    kHasPrevious = 4,     // a checkpoint before the current one, without changes
    kLargeSlots = 8,      // 1 MiB instead of 4 KiB
    kTwoChunks = 16,      // the checkpoint is cut in the middle
    kFlushedBlocks = 32,  // each block says that the one before it was flushed
    kOneCopy = 64,        // header patches change copy 0 of the superblock only
    kChanges = 128,       // keys are changed before the store is closed
  };
  std::uint8_t flags = 0;
  std::vector<HeaderPatch> patches;
  std::vector<std::byte> stream;               // records of the checkpoint
  std::vector<std::vector<std::byte>> blocks;  // records of each journal block

  // Any bytes are an input; serialize(parse(x)) describes the same image.
  [[nodiscard]] static ImageInput parse(ConstBytes bytes);
  [[nodiscard]] std::vector<std::byte> serialize() const;
  [[nodiscard]] std::unique_ptr<SimulatedDevice> build() const;
};

// Cuts a stream at its records, as far as their sizes make sense; the last piece is the rest.
[[nodiscard]] std::vector<std::vector<std::byte>> split_records(ConstBytes stream);
// Writes the size of the body into the front of a record.
void fix_record_size(std::vector<std::byte>& record);

}  // namespace kvslot::testing
