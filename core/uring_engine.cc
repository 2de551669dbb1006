// Finds the calling thread's ring and hands it the batch. Called by file_device.
#include "core/uring_engine.h"

#include <algorithm>

namespace kvslot {
namespace {

constexpr unsigned kWantedFlags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                  IORING_SETUP_SUBMIT_ALL | IORING_SETUP_CLAMP;

struct OwnedRing {
  const UringEngine* engine;
  std::shared_ptr<UringRing> ring;
};

// The rings of this thread; they close when it ends. An engine closes its rings when it ends, so
// an entry whose engine is gone holds a closed ring, even if a new engine has the same address.
thread_local std::vector<OwnedRing> rings_of_this_thread;

}  // namespace

Result<std::unique_ptr<UringEngine>> UringEngine::open(unsigned queue_depth_max,
                                                       IoCounters& counters) {
  // A ring belongs to the thread that made it, so this one only finds out what the kernel has.
  auto trial = UringRing::open({.entries = queue_depth_max, .flags = kWantedFlags});
  if (!trial) return fail(trial);
  const UringOptions options{.entries = queue_depth_max, .flags = (*trial)->flags()};
  std::string detail = uring_flags_to_string(options.flags) + ", " +
                       std::to_string((*trial)->entries()) + " entries";
  return std::unique_ptr<UringEngine>(new UringEngine(options, std::move(detail), counters));
}

UringEngine::~UringEngine() {
  const MutexLock lock(mutex_);
  for (const std::weak_ptr<UringRing>& entry : rings_) {
    if (const auto ring = entry.lock()) ring->close();
  }
}

void UringEngine::run(int fd, std::span<IoRequest> requests) {
  UringRing* const ring = requests.size() > 1 ? ring_of_this_thread() : nullptr;
  if (ring == nullptr) return posix_.run(fd, requests);
  ring->run(fd, requests, counters_);  // A ring that gave up is closed and replaced next time.
}

bool UringEngine::run_or_leave(int fd, std::span<IoRequest> requests,
                               const std::function<bool()>& is_over,
                               std::unique_ptr<LateRequests>& late) {
  if (requests.size() > kLeavableRequestsMax || !can_leave_.load(std::memory_order_relaxed))
    return false;
  std::unique_ptr<LeavableRing> ring = take_leavable_ring();
  if (ring == nullptr) return false;
  const LeavableEnd end = ring->run(fd, requests, is_over, counters_);
  if (end == LeavableEnd::kLeft) {
    late = std::move(ring);
    return true;
  }
  if (end == LeavableEnd::kUnsupported) can_leave_.store(false, std::memory_order_relaxed);
  if (end != LeavableEnd::kBroken) {
    const MutexLock lock(mutex_);
    idle_leavable_rings_.push_back(std::move(ring));
  }
  return end == LeavableEnd::kDone;
}

std::unique_ptr<LeavableRing> UringEngine::take_leavable_ring() {
  {
    const MutexLock lock(mutex_);
    if (!idle_leavable_rings_.empty()) {
      auto ring = std::move(idle_leavable_rings_.back());
      idle_leavable_rings_.pop_back();
      return ring;
    }
  }
  return LeavableRing::open();
}

std::size_t UringEngine::ring_count() const {
  const MutexLock lock(mutex_);
  return static_cast<std::size_t>(
      std::ranges::count_if(rings_, [](const auto& ring) { return !ring.expired(); }));
}

// Null when the kernel has no ring for this thread now: out of memory, or of descriptors.
UringRing* UringEngine::ring_of_this_thread() {
  for (const OwnedRing& owned : rings_of_this_thread) {
    if (owned.engine == this && !owned.ring->is_closed()) return owned.ring.get();
  }
  std::erase_if(rings_of_this_thread,
                [](const OwnedRing& owned) { return owned.ring->is_closed(); });
  auto opened = UringRing::open(options_);
  if (!opened) return nullptr;
  rings_of_this_thread.push_back({.engine = this, .ring = *opened});
  const MutexLock lock(mutex_);
  std::erase_if(rings_, [](const auto& ring) { return ring.expired(); });
  rings_.push_back(*opened);
  return opened->get();
}

}  // namespace kvslot
