// Names of up to 255 bytes, packed. A name costs its length, one byte, and up to three of padding;
// a freed place is used again by the next name of its length class. Used by core/index.*.
#pragma once

#include <kvslot/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace kvslot {

// Threads: one thread at a time.
class NameArena {
 public:
  using Ref = std::uint32_t;
  static constexpr Ref kEmpty = 0;  // the empty name; takes no place

  Ref add(std::string_view name);
  void remove(Ref ref);
  // Valid until the name is removed.
  [[nodiscard]] std::string_view get(Ref ref) const;
  [[nodiscard]] std::uint64_t memory_bytes() const;

 private:
  // A Ref counts 4-byte units: the chunk in the upper 18 bits, the place in the lower 14.
  static constexpr std::uint32_t kUnitBytes = 4;
  static constexpr std::uint32_t kUnitBits = 14;
  static constexpr std::uint32_t kChunkUnits = 1u << kUnitBits;
  static constexpr std::uint32_t kClassCount = 65;  // units of the longest name, plus one

  [[nodiscard]] char* place(Ref ref) const {
    return chunks_[ref >> kUnitBits].get() + (ref & (kChunkUnits - 1)) * kUnitBytes;
  }

  std::vector<std::unique_ptr<char[]>> chunks_;
  std::uint32_t next_unit_ = kChunkUnits;  // first unused unit of the last chunk
  std::array<Ref, kClassCount> free_{};    // heads of lists threaded through free places
};

}  // namespace kvslot
