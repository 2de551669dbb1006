// Asynchronous transfers as NIXL's POSIX backend makes them: libaio, io_uring, POSIX aio; submitted
// in batches, with many under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvslot::testing {

struct AsyncTransfer {
  int fd = -1;
  bool is_write = false;
  std::uint64_t offset = 0;
  std::span<std::byte> bytes;
};

inline constexpr unsigned kAsyncDepth = 256;
inline constexpr unsigned kAsyncBatch = 64;

// One thread at a time.
class AsyncEngine {
 public:
  virtual ~AsyncEngine() = default;
  // Carries out all of them, in no order. 0, kShort or the errno of one that failed.
  [[nodiscard]] virtual int run(std::span<const AsyncTransfer> transfers) = 0;
};

enum class AsyncKind { kLibaio, kUring, kUringRegistered, kPosixAio };

// Nothing where the machine has none; says why in `reason`.
[[nodiscard]] std::unique_ptr<AsyncEngine> make_async_engine(AsyncKind kind, std::string& reason);

}  // namespace kvslot::testing
