// Writes, copies and reservations that wait for staging memory or for slots. They are tried again,
// in their order, when something came back.
//
// Step before: fs/filesystem_writing. Step after: the attempt itself, and fs/publisher, which makes
// memory free.
#pragma once

#include <kvslot/error.h>
#include <kvslot/mutex.h>
#include <kvslot/volume.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "fs/live_content.h"
#include "fs/publisher.h"
#include "fs/reader_pool.h"

namespace kvslot {

// The kernel sends RELEASE and FORGET right after the call that closed or removed a file, but does
// not wait for them; a machine must be very busy to need a part of this. It is waited for only
// where the store is full and a removed file is still held.
inline constexpr std::chrono::seconds kPartingWait{5};

struct ParkedWrite {
  std::function<Result<void>(LiveContent::Memory memory)> attempt;
  std::function<void(Result<void> result)> finish;  // once, under no lock
  std::size_t kept_bytes = 0;                       // by `attempt`, see make_room
  std::uint64_t patience = 0;  // it waits for slots until so many flights have ended
};

// Threads: thread-safe. What waits is served by one thread of the pool at a time.
class ParkedWrites {
 public:
  ParkedWrites(Volume& volume, Publisher& publisher, ReaderPool& pool)
      : volume_(volume), publisher_(publisher), pool_(pool) {}

  // Whether what an attempt lacks may come back: memory, or the slots of values that commits under
  // way replace, or of removed files that the kernel is about to let go of. The patience is
  // Publisher::flights() before the attempt: what ends meanwhile counts as waited for.
  [[nodiscard]] bool is_worth_waiting(const Result<void>& result, std::uint64_t patience) const;
  void park(ParkedWrite write);

  // For whoever is to keep bytes of a write here: waits on the caller's thread while those that are
  // kept reach the bound, and counts them in.
  void make_room(std::size_t bytes);
  // Nobody waits in make_room any more. For the end of a mount.
  void end_waiting();

  // Something came back.
  void wake();
  // Somebody removed a file, or closed a removed one. The kernel lets go of it after that.
  void note_parting() { last_parting_ = Clock::now().time_since_epoch().count(); }
  // How long that is waited for.
  void set_parting_wait(std::chrono::seconds wait) { parting_wait_ = wait; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Outcome {
    Result<void> result;
    bool waits = false;
    std::optional<Clock::time_point> due = {};  // it waits for partings, until then
  };

  [[nodiscard]] std::optional<Clock::time_point> slots_due() const;
  Outcome try_again(const ParkedWrite& write);
  void serve();

  Volume& volume_;
  Publisher& publisher_;
  ReaderPool& pool_;
  std::atomic<Clock::rep> last_parting_ = 0;
  std::atomic<std::chrono::seconds> parting_wait_ = kPartingWait;
  std::atomic<std::size_t> count_ = 0;  // waiting, and the one being tried

  Mutex mutex_;
  Condition changed_;
  std::deque<ParkedWrite> queue_ GUARDED_BY(mutex_);
  std::size_t kept_bytes_ GUARDED_BY(mutex_) = 0;
  std::uint64_t wakes_ GUARDED_BY(mutex_) = 0;
  bool is_serving_ GUARDED_BY(mutex_) = false;
  bool is_ending_ GUARDED_BY(mutex_) = false;
};

}  // namespace kvslot
