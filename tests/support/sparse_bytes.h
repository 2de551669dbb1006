// Bytes of which most are zero: the memory of a simulated device, of any size.
#pragma once

#include <kvslot/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace kvslot::testing {

// Threads: one thread at a time.
class SparseBytes {
 public:
  static constexpr std::uint64_t kPageSizeBytes = 4096;

  SparseBytes() = default;
  SparseBytes(const SparseBytes&) = default;  // shares pages until one of the two writes them
  SparseBytes& operator=(const SparseBytes&) = delete;
  SparseBytes(SparseBytes&&) = default;
  SparseBytes& operator=(SparseBytes&&) = default;
  ~SparseBytes() = default;

  void read(std::uint64_t offset_bytes, Bytes target) const;
  void write(std::uint64_t offset_bytes, ConstBytes source);
  void flip_bit(std::uint64_t offset_bytes, unsigned bit);
  // Makes the whole pages of the range zero and forgets them.
  void erase(std::uint64_t offset_bytes, std::uint64_t size_bytes);
  // Differs when any byte does; zeros count as forgotten.
  [[nodiscard]] std::uint64_t fingerprint() const;
  [[nodiscard]] bool has_page(std::uint64_t page) const { return pages_.contains(page); }
  [[nodiscard]] std::size_t page_count() const { return pages_.size(); }

 private:
  using Page = std::array<std::byte, kPageSizeBytes>;
  Page& page_at(std::uint64_t page);
  std::unordered_map<std::uint64_t, std::shared_ptr<Page>> pages_;
};

}  // namespace kvslot::testing
