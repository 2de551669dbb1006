// The control directory `.kvslot/`: names, attributes and contents of the pseudo-files. Holds no
// libfuse types. fs/operations asks it for every node number at or above kPseudoNodeFirst.
#pragma once

#include <kvslot/error.h>
#include <kvslot/types.h>
#include <kvslot/volume.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvslot {

// Node numbers of the mount: below this they are NodeIds, from here on pseudo-nodes.
inline constexpr std::uint64_t kPseudoNodeFirst = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kControlDirectoryNode = kPseudoNodeFirst;
inline constexpr std::string_view kControlDirectoryName = kReservedName;

struct PseudoNode {
  std::uint64_t node = 0;  // stable for one path while the mount lives
  bool is_directory = false;
  std::uint32_t mode = 0444;     // permission bits
  std::uint64_t size_bytes = 0;  // true size of the bounded files, 0 for index, slots, trace
};

struct PseudoEntry {
  std::string name;
  std::uint64_t node = 0;
  bool is_directory = false;
  std::uint64_t cookie = 0;  // goes on strictly after this entry
};

// The content of one open pseudo-file: a snapshot, or a cursor for the unbounded ones.
// Threads: one thread at a time. Never waits for the device (slot/<n> excepted: its header).
class PseudoHandle {
 public:
  virtual ~PseudoHandle() = default;
  // Whether read() may wait for the device: it needs a thread that others can spare.
  [[nodiscard]] virtual bool waits_for_device() const { return false; }
  // Bytes from offset; fewer than size_bytes only at the end. Offsets before what was already
  // read are served for bounded files, and restart the cursor for the unbounded ones.
  virtual Result<std::string> read(std::uint64_t offset_bytes, std::size_t size_bytes) = 0;
  virtual Result<std::size_t> write(std::string_view) { return fail(Errc::kReadOnly, "write"); }
};

// `name<TAB>value` lines that only the mount knows: transport, options, pid.
using ConfigLines = std::vector<std::pair<std::string, std::string>>;

// What the mount adds to a key's record: open handles and dirty bytes.
struct LiveNodeInfo {
  std::uint64_t open_handles = 0;
  std::uint64_t dirty_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t waiters = 0;  // requests that wait for the commit in flight
};

struct PseudoTreeHooks {
  // Others may use the mount: what tells names of keys is then for its owner alone.
  bool names_are_private = false;
  std::function<ConfigLines()> config;
  std::function<std::vector<Stat>()> stats;  // added to the engine's
  std::function<LiveNodeInfo(NodeId)> live_node;
  std::function<std::uint32_t()> deadline_seconds;  // for the device to answer
  std::function<void(std::uint32_t)> set_deadline_seconds;
  std::uint64_t scrub_bytes_per_second = 0;  // 0: as fast as the device reads
};

// Threads: thread-safe.
class PseudoTree {
 public:
  PseudoTree(Volume& volume, PseudoTreeHooks hooks);
  ~PseudoTree();

  Result<PseudoNode> lookup(std::uint64_t directory, std::string_view name);
  Result<PseudoNode> stat(std::uint64_t node);
  // `index` and the other unbounded ones report size 0.
  Result<std::vector<PseudoEntry>> list(std::uint64_t directory, std::uint64_t cookie,
                                        std::size_t count_max);
  Result<std::unique_ptr<PseudoHandle>> open(std::uint64_t node, bool for_writing);

  // Stops the scrub, if one is under way: at the end of the mount, before the store closes.
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvslot
