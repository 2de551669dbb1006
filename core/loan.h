// Memory that a device may still use although its caller was told that the request failed.
// Made by core/watched_device; heeded by Buffer and BufferPool.
//
// The register of loans is the only state of the process that kvslot shares between stores: memory
// from the heap has no owner but its Buffer, and that one may go before the device is done.
#pragma once

#include <kvslot/buffer.h>
#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <vector>

namespace kvslot {

// As long as it lives, a Buffer that holds any of the memory is kept when it is destroyed, and
// given back when the last loan over it ends.
// Threads: thread-safe.
class Loan {
 public:
  explicit Loan(std::vector<iovec> segments);
  ~Loan();
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  [[nodiscard]] std::span<const iovec> segments() const { return segments_; }

  // For Buffer: takes the memory over where it is lent.
  [[nodiscard]] static bool keep(Buffer& buffer);
  // For BufferPool: forgets what it keeps of the pool, which the pool then must not unmap.
  //   returns  the bytes of it
  [[nodiscard]] static std::size_t forget(const BufferPool& pool);
  [[nodiscard]] static std::size_t kept_count();

 private:
  const std::vector<iovec> segments_;
};

}  // namespace kvslot
