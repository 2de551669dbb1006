// The name store of the index.
#include "core/name_arena.h"

#include <kvslot/check.h>

#include <cstring>

namespace kvslot {
namespace {

std::uint32_t units_for(std::size_t name_bytes) {
  return static_cast<std::uint32_t>((name_bytes + 1 + 3) / 4);
}

}  // namespace

NameArena::Ref NameArena::add(std::string_view name) {
  if (name.empty()) return kEmpty;
  KVSLOT_CHECK(name.size() <= kNameSizeBytesMax, "a name has at most 255 bytes");
  const std::uint32_t units = units_for(name.size());
  Ref ref = free_[units];
  if (ref != kEmpty) {
    std::memcpy(&free_[units], place(ref), sizeof(Ref));
  } else {
    if (next_unit_ + units > kChunkUnits) {
      // The rest of the chunk is lost: at most 260 bytes of 64 KiB.
      chunks_.push_back(std::make_unique_for_overwrite<char[]>(kChunkUnits * kUnitBytes));
      KVSLOT_CHECK(chunks_.size() <= (1u << (32 - kUnitBits)), "16 GiB of names");
      next_unit_ = chunks_.size() == 1 ? 1 : 0;  // unit 0 of chunk 0 would be kEmpty
    }
    ref = static_cast<Ref>((chunks_.size() - 1) << kUnitBits) | next_unit_;
    next_unit_ += units;
  }
  char* target = place(ref);
  target[0] = static_cast<char>(static_cast<unsigned char>(name.size()));
  std::memcpy(target + 1, name.data(), name.size());
  return ref;
}

void NameArena::remove(Ref ref) {
  if (ref == kEmpty) return;
  const std::uint32_t units = units_for(get(ref).size());
  std::memcpy(place(ref), &free_[units], sizeof(Ref));
  free_[units] = ref;
}

std::string_view NameArena::get(Ref ref) const {
  if (ref == kEmpty) return {};
  const char* source = place(ref);
  return {source + 1, static_cast<unsigned char>(source[0])};
}

std::uint64_t NameArena::memory_bytes() const {
  return chunks_.size() * kChunkUnits * kUnitBytes + chunks_.capacity() * sizeof(chunks_[0]);
}

}  // namespace kvslot
