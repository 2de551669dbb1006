// The order in which a directory is listed: node numbers sorted by a 63-bit cookie that each entry
// keeps while it exists. Resuming after a cookie is a binary search, whether or not its entry
// still exists, so an entry present all the time appears exactly once whatever comes and goes.
// Used by core/index.*.
#pragma once

#include <kvslot/check.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvslot {

// Threads: one thread at a time. `cookie_of(node)` gives a node's cookie; it is passed in so that
// a node costs four bytes here.
class DirectoryOrder {
 public:
  template <typename CookieOf>
  void insert(std::uint32_t node, CookieOf cookie_of) {
    const std::uint64_t cookie = cookie_of(node);
    if (chunks_.empty()) chunks_.emplace_back();
    auto chunk = chunk_for(cookie, cookie_of);
    auto place = std::upper_bound(
        chunk->begin(), chunk->end(), cookie,
        [&](std::uint64_t value, std::uint32_t other) { return value < cookie_of(other); });
    if (chunk->size() >= kChunkCountMax) {
      const bool append = place == chunk->end();
      const auto middle = append ? chunk->end() : chunk->begin() + kChunkCountMax / 2;
      Chunk upper(middle, chunk->end());
      chunk->erase(middle, chunk->end());
      chunk = chunks_.insert(chunk + 1, std::move(upper)) - 1;
      if (append || cookie_of((chunk + 1)->front()) < cookie) ++chunk;
      place = std::upper_bound(
          chunk->begin(), chunk->end(), cookie,
          [&](std::uint64_t value, std::uint32_t other) { return value < cookie_of(other); });
    }
    chunk->insert(place, node);
    ++count_;
  }

  template <typename CookieOf>
  void erase(std::uint32_t node, CookieOf cookie_of) {
    auto chunk = chunk_for(cookie_of(node), cookie_of);
    const auto place = std::lower_bound(
        chunk->begin(), chunk->end(), cookie_of(node),
        [&](std::uint32_t other, std::uint64_t value) { return cookie_of(other) < value; });
    KVSLOT_CHECK(place != chunk->end() && *place == node, "no two entries share a cookie");
    chunk->erase(place);
    if (chunk->empty()) chunks_.erase(chunk);
    --count_;
  }

  // Appends the nodes with cookies above `cookie`, in order, until `out` holds count_max.
  template <typename CookieOf>
  void list(std::uint64_t cookie, std::size_t count_max, CookieOf cookie_of,
            std::vector<std::uint32_t>& out) const {
    if (chunks_.empty()) return;
    auto chunk = const_cast<DirectoryOrder*>(this)->chunk_for(cookie, cookie_of);
    auto place = std::upper_bound(
        chunk->begin(), chunk->end(), cookie,
        [&](std::uint64_t value, std::uint32_t other) { return value < cookie_of(other); });
    while (out.size() < count_max) {
      if (place == chunk->end()) {
        if (++chunk == const_cast<DirectoryOrder*>(this)->chunks_.end()) return;
        place = chunk->begin();
        continue;
      }
      out.push_back(*place++);
    }
  }

  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::uint64_t memory_bytes() const {
    std::uint64_t bytes = sizeof *this + chunks_.capacity() * sizeof(Chunk);
    for (const Chunk& chunk : chunks_) bytes += chunk.capacity() * sizeof(std::uint32_t);
    return bytes;
  }

 private:
  using Chunk = std::vector<std::uint32_t>;
  static constexpr std::size_t kChunkCountMax = 512;

  // The last chunk whose first cookie is at most `cookie`, or the first chunk. No chunk is empty
  // but the only one of an empty directory.
  template <typename CookieOf>
  std::vector<Chunk>::iterator chunk_for(std::uint64_t cookie, CookieOf cookie_of) {
    auto after = std::upper_bound(chunks_.begin(), chunks_.end(), cookie,
                                  [&](std::uint64_t value, const Chunk& chunk) {
                                    return !chunk.empty() && value < cookie_of(chunk.front());
                                  });
    return after == chunks_.begin() ? after : after - 1;
  }

  std::vector<Chunk> chunks_;
  std::size_t count_ = 0;
};

}  // namespace kvslot
