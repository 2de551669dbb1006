// Chunks as KV-cache programs keep them: bytes that tell which chunk they are, in memory that
// direct transfers can use or cannot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace kvslot::testing {

inline constexpr std::size_t kPageBytes = 4096;

// Memory for transfers. Starts at a page, or `skew_bytes` behind the start of one.
class ChunkBuffer {
 public:
  explicit ChunkBuffer(std::size_t size_bytes, std::size_t skew_bytes = 0);
  [[nodiscard]] std::span<std::byte> bytes() const { return {start_, size_}; }
  [[nodiscard]] std::byte* data() const { return start_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::byte* start_;
  std::size_t size_;
};

// What a chunk of that seed and size holds: its seed, its size, and bytes that follow from both.
// Two chunks differ in every page.
void fill_chunk(std::uint64_t seed, std::span<std::byte> bytes);
[[nodiscard]] ChunkBuffer make_chunk(std::uint64_t seed, std::size_t size_bytes,
                                     std::size_t skew_bytes = 0);

// Which chunk this is, whole and of its right length; nothing where it is none. No chunk is
// shorter than this.
inline constexpr std::size_t kChunkBytesMin = 16;
[[nodiscard]] std::optional<std::uint64_t> seed_of_chunk(std::span<const std::byte> bytes);
[[nodiscard]] bool is_chunk(std::uint64_t seed, std::span<const std::byte> bytes);

}  // namespace kvslot::testing
