// What keeps the slots that a reader looks at from being used again before it has left.
// Taken by core/contents.cc and core/scrub.cc together with the extents to read.
#pragma once

#include <cstdint>

#include "core/state.h"

namespace kvslot {

// Made under the state lock; gives the ticket back, taking the lock, when destroyed.
class ReaderTicket {
 public:
  explicit ReaderTicket(Volume::State& state) REQUIRES(state.mutex)
      : state_(state), number_(++state.reader_ticket) {
    state.readers.insert(number_);
  }
  ~ReaderTicket() {
    MutexLock lock(state_.mutex);
    state_.readers.erase(number_);
    state_.reclaim();
    state_.readers_left.notify_all();
  }
  ReaderTicket(const ReaderTicket&) = delete;
  ReaderTicket& operator=(const ReaderTicket&) = delete;

 private:
  Volume::State& state_;
  const std::uint64_t number_;
};

}  // namespace kvslot
