#include "tests/support/sparse_bytes.h"

#include <xxh_x86dispatch.h>

#include <algorithm>
#include <cstring>

namespace kvslot::testing {
namespace {

constexpr std::uint64_t kPageSizeBytes = SparseBytes::kPageSizeBytes;

// Calls visit(page, offset in page, offset in span, length) for every page that a range touches.
template <typename Visit>
void for_each_page(std::uint64_t offset_bytes, std::size_t size_bytes, Visit visit) {
  std::size_t done_bytes = 0;
  while (done_bytes < size_bytes) {
    const std::uint64_t at = offset_bytes + done_bytes;
    const std::size_t in_page = at % kPageSizeBytes;
    const std::size_t length = std::min(size_bytes - done_bytes, kPageSizeBytes - in_page);
    visit(at / kPageSizeBytes, in_page, done_bytes, length);
    done_bytes += length;
  }
}

}  // namespace

void SparseBytes::read(std::uint64_t offset_bytes, Bytes target) const {
  for_each_page(offset_bytes, target.size(),
                [&](std::uint64_t number, std::size_t from, std::size_t to, std::size_t length) {
                  const auto found = pages_.find(number);
                  if (found == pages_.end()) {
                    std::memset(target.data() + to, 0, length);
                  } else {
                    std::memcpy(target.data() + to, found->second->data() + from, length);
                  }
                });
}

void SparseBytes::write(std::uint64_t offset_bytes, ConstBytes source) {
  for_each_page(offset_bytes, source.size(),
                [&](std::uint64_t number, std::size_t to, std::size_t from, std::size_t length) {
                  std::memcpy(page_at(number).data() + to, source.data() + from, length);
                });
}

void SparseBytes::flip_bit(std::uint64_t offset_bytes, unsigned bit) {
  page_at(offset_bytes / kPageSizeBytes)[offset_bytes % kPageSizeBytes] ^= std::byte{1} << bit;
}

void SparseBytes::erase(std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  const std::uint64_t first = (offset_bytes + kPageSizeBytes - 1) / kPageSizeBytes;
  const std::uint64_t end = (offset_bytes + size_bytes) / kPageSizeBytes;
  if (end <= first) return;
  if (end - first < pages_.size()) {
    for (std::uint64_t number = first; number < end; ++number) pages_.erase(number);
  } else {
    std::erase_if(pages_,
                  [&](const auto& entry) { return entry.first >= first && entry.first < end; });
  }
}

// A sum, because pages come in no particular order.
std::uint64_t SparseBytes::fingerprint() const {
  static constexpr Page kZeros{};
  std::uint64_t sum = 0;
  for (const auto& [number, page] : pages_)
    if (*page != kZeros) sum += XXH3_64bits_withSeed(page->data(), page->size(), number);
  return sum;
}

SparseBytes::Page& SparseBytes::page_at(std::uint64_t page) {
  auto& slot = pages_[page];
  if (slot == nullptr) {
    slot = std::make_shared<Page>();
  } else if (slot.use_count() > 1) {
    slot = std::make_shared<Page>(*slot);
  }
  return *slot;
}

}  // namespace kvslot::testing
