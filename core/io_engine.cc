// Chooses an engine and keeps its counters. Called by file_device.
#include "core/io_engine.h"

#include <algorithm>
#include <cstring>

#include "core/posix_engine.h"
#include "core/uring_engine.h"

namespace kvslot {

void IoCounters::enter(std::uint64_t requests) {
  const std::uint64_t depth = queue_depth.fetch_add(requests, std::memory_order_relaxed) + requests;
  std::uint64_t most = queue_depth_max.load(std::memory_order_relaxed);
  while (depth > most &&
         !queue_depth_max.compare_exchange_weak(most, depth, std::memory_order_relaxed)) {
  }
}

void IoCounters::leave(std::uint64_t requests) {
  queue_depth.fetch_sub(requests, std::memory_order_relaxed);
}

DeviceCounters IoCounters::snapshot() const {
  return {.reads = reads,
          .writes = writes,
          .read_bytes = read_bytes,
          .written_bytes = written_bytes,
          .batches = batches,
          .submissions = submissions,
          .flushes = flushes,
          .retries = retries,
          .short_transfers = short_transfers,
          .queue_depth = queue_depth,
          .queue_depth_max = queue_depth_max};
}

Result<std::unique_ptr<IoEngine>> make_io_engine(const IoEngineOptions& options,
                                                 IoCounters& counters) {
  const unsigned depth = std::clamp(options.queue_depth_max, 1U, kQueueDepthMax);
  if (options.choice == EngineChoice::kPosix) {
    return std::make_unique<PosixEngine>("chosen by option", counters);
  }
  auto uring = UringEngine::open(depth, counters);
  if (uring) return std::move(*uring);
  if (options.choice == EngineChoice::kUring) {
    return fail(Errc::kInvalid, uring.error().step, uring.error().os_errno);
  }
  std::string reason = uring.error().step;
  reason += ": ";
  reason += std::strerror(uring.error().os_errno);
  return std::make_unique<PosixEngine>(std::move(reason), counters);
}

}  // namespace kvslot
