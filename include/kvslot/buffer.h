// Aligned memory for transfers. A Buffer is a power-of-two piece of a BufferPool, or of the heap
// where the pool is used up; it returns to where it came from when destroyed, or later, where a
// device that was given up still uses it.
#pragma once

#include <kvslot/mutex.h>
#include <kvslot/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace kvslot {

class BufferPool;
class Loan;  // core/loan.h: of memory that a device has not let go of

// Threads: one thread at a time. Moved-from and default buffers are empty.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  // Aligned memory from the heap; capacity is size_bytes rounded up to whole blocks.
  [[nodiscard]] static Buffer from_heap(std::size_t size_bytes);

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  [[nodiscard]] explicit operator bool() const { return data_ != nullptr; }
  [[nodiscard]] Bytes bytes() const { return {data_, capacity_}; }
  [[nodiscard]] Bytes first(std::size_t size_bytes) const { return bytes().first(size_bytes); }

 private:
  friend class BufferPool;
  friend class Loan;
  void give_back();
  Buffer(BufferPool* pool, std::byte* data, std::size_t capacity)
      : pool_(pool), data_(data), capacity_(capacity) {}
  BufferPool* pool_ = nullptr;  // null: from the heap
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

// A fixed region on huge pages, touched when created, handed out by a buddy system.
// Threads: thread-safe. Outlives its buffers.
class BufferPool {
 public:
  // size_bytes is rounded up to whole 4 MiB arenas; 0 makes a pool that is always used up.
  explicit BufferPool(std::size_t size_bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A buffer of at least size_bytes (up to 4 MiB), or an empty one when the pool is used up.
  [[nodiscard]] Buffer take(std::size_t size_bytes);
  // The same, from the heap when the pool is used up or the size is over 4 MiB.
  [[nodiscard]] Buffer take_or_heap(std::size_t size_bytes);

  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] std::size_t used_bytes() const;
  [[nodiscard]] std::size_t used_bytes_max() const;

 private:
  friend class Buffer;
  static constexpr unsigned kOrders = 11;  // 4 KiB << 0 .. 4 KiB << 10
  void give_back(std::byte* data, std::size_t capacity);

  const std::size_t size_bytes_;
  std::byte* region_ = nullptr;
  mutable Mutex mutex_;
  std::array<std::set<std::uint32_t>, kOrders> free_ GUARDED_BY(mutex_);  // block numbers by order
  std::size_t used_bytes_ GUARDED_BY(mutex_) = 0;
  std::size_t used_bytes_max_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvslot
