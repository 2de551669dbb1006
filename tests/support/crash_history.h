// What a load did to the keys of a store, operation by operation, and whether what a crash left of
// them is something that it may leave. Kept outside the store; see crash_load.h for who fills it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace kvslot::testing {

using Tick = std::uint64_t;  // of one clock for all threads; 0: never

// What is at a path: nothing, a directory, or a file with these bytes.
struct KeyState {
  enum class Kind : std::uint8_t { kNothing, kDirectory, kFile };
  Kind kind = Kind::kNothing;
  std::uint64_t size_bytes = 0;
  std::uint64_t hash = 0;
  bool operator==(const KeyState&) const = default;
  // The hash is a sum over pages, so that what a page at a time changes is cheap to follow.
  [[nodiscard]] static KeyState of(std::string_view bytes);
  // The states of a file while bytes [offset, end) change from those of `before` to those of
  // `after` page by page: the kernel may send one write as several.
  [[nodiscard]] static std::vector<KeyState> between(const KeyState& state, std::string_view before,
                                                     std::string_view after, std::uint64_t offset,
                                                     std::uint64_t end);
  [[nodiscard]] static KeyState directory() { return {.kind = Kind::kDirectory}; }
  [[nodiscard]] std::string text() const;
};

// One state that a key had in the mount.
struct KeyVersion {
  KeyState state;
  std::string what;
  Tick issued = 0;
  Tick acknowledged = 0;
  // No commit point of its own: a crash may leave it only where a barrier of the whole store came
  // while it lasted.
  bool is_passing = false;
  std::vector<KeyState> parts = {};  // on the way to it, passing
  std::uint64_t move = 0;            // another key changed with it, if the number is the same
};

struct KeyHistory {
  std::vector<KeyVersion> versions;  // the first is what was there when the load began
  std::size_t durable = 0;           // acknowledged as durable by something about this key
};

using Histories = std::map<std::string, KeyHistory>;

// fsync of a directory: everything acknowledged before it is durable with its acknowledgement.
struct Barrier {
  Tick issued = 0;
  Tick acknowledged = 0;
};

// Threads: thread-safe.
class CrashClock {
 public:
  Tick tick() { return ++now_; }
  std::size_t begin_barrier();
  void end_barrier(std::size_t number);
  [[nodiscard]] std::vector<Barrier> barriers() const;

 private:
  std::atomic<Tick> now_ = 0;
  mutable std::mutex mutex_;
  std::vector<Barrier> barriers_;
};

// What is wrong with what was found after a crash, a few lines for each key: a state that its
// history does not allow, or one half of a rename without the other. Nothing, if nothing is.
[[nodiscard]] std::string judge_crash(const Histories& histories,
                                      const std::vector<Barrier>& barriers,
                                      const std::map<std::string, KeyState>& found);

}  // namespace kvslot::testing
