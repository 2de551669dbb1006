// A volume on a simulated device beside the model of it. Each verb carries out one operation and
// notes the state that it leads to; what comes back after a crash must be one of these states, and
// none before the last that was acknowledged as durable.
#pragma once

#include <kvslot/volume.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/model_store.h"
#include "tests/support/simulated_device.h"

namespace kvslot::testing {

// Seconds that never go back, the same in every run.
[[nodiscard]] WallClock ticking_clock();

// Threads: one thread at a time.
class TracedStore {
 public:
  struct Entry {
    std::string key;
    ModelStore::Value value;
  };

  // `seed` gives the epochs. The clock is a ticking one.
  explicit TracedStore(std::uint64_t seed = 1) : seed_(seed) {}

  // The store as it is, to go on with beside this one: the same states, another device.
  [[nodiscard]] static TracedStore resume(const TracedStore& other, std::uint64_t seed);

  // Opens what is on a device; the volume that was open before is dropped as by a crash.
  Result<void> try_open(std::shared_ptr<SimulatedDevice> device);
  bool open(std::shared_ptr<SimulatedDevice> device);  // the test fails when it cannot
  void drop() { volume_.reset(); }

  [[nodiscard]] Volume& volume() { return *volume_; }
  [[nodiscard]] SimulatedDevice& device() const { return *device_; }
  [[nodiscard]] const ModelStore& model() const { return states_.back(); }
  // Nothing can be written any more: the device vanished, or a failure stopped writes.
  [[nodiscard]] bool is_stopped() const;

  // Failures that are no failure of the test. None to begin with, but for what follows the loss of
  // the device.
  using Tolerated = std::function<bool(const std::string& what, const Error& error)>;
  void tolerate(Tolerated tolerated) { tolerated_ = std::move(tolerated); }

  // --- One operation each. Durable: also flushed. What the model says is impossible is skipped.
  void put(const std::vector<Entry>& entries, bool durable = false);
  void put(const std::string& key, std::size_t size_bytes, bool durable = false);
  // Writes a value window by window, each before the next, and commits it in the end.
  void put_in_pieces(const std::string& key, std::size_t size_bytes, bool durable = false);
  // Rewrites the front of a file in place, one window at most.
  void patch(const std::string& key, std::size_t size_bytes, bool durable = false);
  void remove(const std::string& key, bool durable = false);
  void rename(const std::string& from, const std::string& to, bool durable = false);
  void exchange(const std::string& a, const std::string& b);
  void make_directory(const std::string& key, bool durable = false);
  void flush();
  void checkpoint();
  bool close();  // everything is durable then

  // A new file named over `key` before its first commit, and the steps after that.
  NodeId replace_by_new_file(const std::string& key);
  void commit_new_file(const std::string& key, NodeId node, ModelStore::Value value, bool durable);
  void remove_new_file(const std::string& key);

  // Fills all but so many of the slots that values can have, each with a small value; cheap where
  // slots are large. Durable.
  void fill(std::uint64_t slots_left);
  // Uses up journal until the next block goes to `offset_bytes` or a little further.
  void advance_journal(std::uint64_t offset_bytes);

  // What the open volume holds is one of the states that may come back; forgets the others. False:
  // the test has failed.
  bool compare();
  // The same for the state that the volume shows now: exactly the newest.
  bool compare_live();
  // Everything is as before the first operation: what was recorded until now is durable.
  void settle() {
    states_ = {states_.back()};
    durable_ = 0;
  }
  [[nodiscard]] const std::vector<ModelStore>& states() const { return states_; }
  // Values that differ each time.
  [[nodiscard]] ModelStore::Value new_value(std::size_t size_bytes);

 private:
  void record(ModelStore next, bool durable);
  void record_subsets(const std::vector<Entry>& entries);
  bool expect_allowed(const Result<void>& result, const std::string& what);
  // The directory and name of a key, as the volume wants them.
  std::pair<NodeId, std::string> split(const std::string& key);
  [[nodiscard]] bool flush_to(bool durable, std::uint64_t sequence);

  std::uint64_t seed_;
  std::uint64_t value_seed_ = 0;
  Tolerated tolerated_;
  std::shared_ptr<SimulatedDevice> device_;
  std::unique_ptr<Volume> volume_;
  std::vector<ModelStore> states_{1};
  std::size_t durable_ = 0;  // the first state that may come back
};

}  // namespace kvslot::testing
