// See chunk.h.
#include "tests/support/chunk.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

namespace kvslot::testing {
namespace {

using Header = std::array<std::uint64_t, 2>;
static_assert(sizeof(Header) == kChunkBytesMin);

// The word at that place; splitmix64.
std::uint64_t word_at(std::uint64_t seed, std::size_t index) {
  std::uint64_t word = seed * 0xd1342543de82ef95 + index * 0x9e3779b97f4a7c15 + 1;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

}  // namespace

void ChunkBuffer::Free::operator()(std::byte* memory) const { std::free(memory); }

ChunkBuffer::ChunkBuffer(std::size_t size_bytes, std::size_t skew_bytes)
    : memory_(static_cast<std::byte*>(std::aligned_alloc(
          kPageBytes, (size_bytes + skew_bytes + kPageBytes) / kPageBytes * kPageBytes))),
      start_(memory_.get() + skew_bytes),
      size_(size_bytes) {
  if (memory_ == nullptr) throw std::bad_alloc();
  std::memset(start_, 0xee, size_);  // nothing that was here before passes for what was read
}

void fill_chunk(std::uint64_t seed, std::span<std::byte> bytes) {
  const Header header{seed, bytes.size()};
  std::memcpy(bytes.data(), header.data(), std::min(sizeof header, bytes.size()));
  for (std::size_t at = sizeof header; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_at(seed, at);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

ChunkBuffer make_chunk(std::uint64_t seed, std::size_t size_bytes, std::size_t skew_bytes) {
  ChunkBuffer buffer(size_bytes, skew_bytes);
  fill_chunk(seed, buffer.bytes());
  return buffer;
}

std::optional<std::uint64_t> seed_of_chunk(std::span<const std::byte> bytes) {
  Header header{};
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(header.data(), bytes.data(), sizeof header);
  const auto [seed, size] = header;
  if (size != bytes.size()) return std::nullopt;
  for (std::size_t at = sizeof header; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_at(seed, at);
    if (std::memcmp(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at)) != 0) {
      return std::nullopt;
    }
  }
  return seed;
}

bool is_chunk(std::uint64_t seed, std::span<const std::byte> bytes) {
  return seed_of_chunk(bytes) == seed;
}

}  // namespace kvslot::testing
