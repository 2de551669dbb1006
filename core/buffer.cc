// Aligned memory for transfers: the pool that staging buffers come from, and the heap behind it.
// Used by everything that reads or writes a device.
#include <kvslot/buffer.h>
#include <kvslot/check.h>
#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/loan.h"

namespace kvslot {
namespace {

constexpr std::size_t kArenaSizeBytes = 4 * kMiB;
constexpr std::size_t kHugePageSizeBytes = 2 * kMiB;

std::size_t round_up(std::size_t size_bytes, std::size_t unit_bytes) {
  return (size_bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}

// The smallest order whose blocks hold size_bytes, which is at least 1.
unsigned order_of(std::size_t size_bytes) {
  const std::size_t blocks = (size_bytes + kBlockSizeBytes - 1) / kBlockSizeBytes;
  return static_cast<unsigned>(std::bit_width(blocks - 1));
}

// Gives every page its memory now: a fault on the data path costs more than the copy it serves.
void touch(std::byte* region, std::size_t size_bytes) {
  ::madvise(region, size_bytes, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  if (::madvise(region, size_bytes, MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) return;  // Short of memory: faults will come as pages are used.
#endif
  for (std::size_t at = 0; at < size_bytes; at += kBlockSizeBytes) region[at] = std::byte{0};
}

// Maps more than asked for and gives back both ends, so that huge pages fit. Null on failure.
std::byte* map_aligned(std::size_t size_bytes) {
  const std::size_t mapped_bytes = size_bytes + kHugePageSizeBytes;
  void* const mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  std::byte* const start = static_cast<std::byte*>(mapped);
  const std::size_t over = reinterpret_cast<std::uintptr_t>(start) % kHugePageSizeBytes;
  const std::size_t head_bytes = over == 0 ? 0 : kHugePageSizeBytes - over;
  const std::size_t tail_bytes = kHugePageSizeBytes - head_bytes;
  if (head_bytes > 0) ::munmap(start, head_bytes);
  if (tail_bytes > 0) ::munmap(start + head_bytes + size_bytes, tail_bytes);
  return start + head_bytes;
}

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  Buffer released(std::move(other));  // What this held goes back now, not with `other`.
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr && !Loan::keep(*this)) give_back();
}

void Buffer::give_back() {
  if (pool_ != nullptr) {
    pool_->give_back(data_, capacity_);
  } else {
    std::free(data_);
  }
  data_ = nullptr;
}

Buffer Buffer::from_heap(std::size_t size_bytes) {
  if (size_bytes == 0) return {};
  const std::size_t capacity = round_up(size_bytes, kBlockSizeBytes);
  void* const data = std::aligned_alloc(kBlockSizeBytes, capacity);
  if (data == nullptr) return {};
  return {nullptr, static_cast<std::byte*>(data), capacity};
}

BufferPool::BufferPool(std::size_t size_bytes)
    : size_bytes_(round_up(size_bytes, kArenaSizeBytes)) {
  if (size_bytes_ == 0) return;
  region_ = map_aligned(size_bytes_);
  if (region_ == nullptr) return;  // Always used up: callers go to the heap or wait.
  touch(region_, size_bytes_);
  const MutexLock lock(mutex_);
  for (std::size_t at = 0; at < size_bytes_; at += kArenaSizeBytes) {
    free_[kOrders - 1].insert(static_cast<std::uint32_t>(at / kBlockSizeBytes));
  }
}

BufferPool::~BufferPool() {
  const std::size_t lent_bytes = Loan::forget(*this);
  KVSLOT_CHECK(used_bytes() == lent_bytes, "buffer pool: destroyed before its buffers");
  if (region_ != nullptr && lent_bytes == 0) ::munmap(region_, size_bytes_);
}

Buffer BufferPool::take(std::size_t size_bytes) {
  if (size_bytes == 0 || size_bytes > kArenaSizeBytes) return {};
  const unsigned wanted = order_of(size_bytes);
  const MutexLock lock(mutex_);
  unsigned order = wanted;
  while (order < kOrders && free_[order].empty()) ++order;
  if (order == kOrders) return {};
  const std::uint32_t block = *free_[order].begin();
  free_[order].erase(free_[order].begin());
  while (order > wanted) {
    --order;
    free_[order].insert(block + (1U << order));
  }
  const std::size_t capacity = std::size_t{kBlockSizeBytes} << wanted;
  used_bytes_ += capacity;
  if (used_bytes_ > used_bytes_max_) used_bytes_max_ = used_bytes_;
  return {this, region_ + std::size_t{block} * kBlockSizeBytes, capacity};
}

Buffer BufferPool::take_or_heap(std::size_t size_bytes) {
  Buffer buffer = take(size_bytes);
  return buffer ? std::move(buffer) : Buffer::from_heap(size_bytes);
}

std::size_t BufferPool::used_bytes() const {
  const MutexLock lock(mutex_);
  return used_bytes_;
}

std::size_t BufferPool::used_bytes_max() const {
  const MutexLock lock(mutex_);
  return used_bytes_max_;
}

void BufferPool::give_back(std::byte* data, std::size_t capacity) {
  auto block =
      static_cast<std::uint32_t>(static_cast<std::size_t>(data - region_) / kBlockSizeBytes);
  unsigned order = order_of(capacity);
  const MutexLock lock(mutex_);
  KVSLOT_CHECK(used_bytes_ >= capacity, "buffer pool: more given back than taken");
  used_bytes_ -= capacity;
  while (order < kOrders - 1 && free_[order].erase(block ^ (1U << order)) > 0) {
    block &= ~(1U << order);
    ++order;
  }
  KVSLOT_CHECK(free_[order].insert(block).second, "buffer pool: given back twice");
}

}  // namespace kvslot
