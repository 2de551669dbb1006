// Keys and values: the engine as a library. A key is a path such as "model/layer0/chunk7"; what is
// put under it is the file that a mount shows there, directories included.
#pragma once

#include <kvslot/batcher.h>
#include <kvslot/device.h>
#include <kvslot/error.h>
#include <kvslot/options.h>
#include <kvslot/types.h>
#include <kvslot/volume.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvslot {

struct Put {
  std::string_view key;
  ConstBytes value;
};

enum class PutPolicy : std::uint8_t {
  kReplace,  // the new value wins
  kKeep,     // an existing or in-flight key is left alone and reported as a success
};

struct PutOptions {
  PutPolicy policy = PutPolicy::kReplace;
  Durability durability = Durability::kDurable;
};

struct PutOutcome {
  std::vector<Result<void>> results;  // results[i] belongs to puts[i]
  std::vector<std::string> stored;    // keys that did not exist before, in order
};

struct StoreOptions {
  VolumeOptions volume;
  BatcherOptions batcher;
};

struct ListedKey {
  std::string key;
  std::uint64_t size_bytes = 0;
};

// Threads: thread-safe.
class Store {
 public:
  static Result<std::unique_ptr<Store>> open(std::unique_ptr<Device> device,
                                             const StoreOptions& options = {});
  ~Store();  // closes, and swallows what close() would have reported

  // Stores puts[i].value under puts[i].key for every i, as one batch (several when over the
  // batch's bounds): one lock to reserve, one submission, one lock to publish.
  //   shapes   outcome.results.size() == puts.size(), in order
  //   errors   per key: kInvalid (empty component, "." or "..", NUL, a reserved name), kTooLarge
  //            (a component over 255 bytes), kWrongKind (a directory is there), kNoSpace, kIo. One
  //            bad key never fails its neighbours. A key given twice: the last value wins, both
  //            succeed
  //   threads  thread-safe; concurrent puts of one key are ordered, and both succeed
  //   owns     borrows keys and values for the call only
  //   source   core/commit.cc; core/LAYOUT.md "A batch"
  PutOutcome put_many(std::span<const Put> puts, const PutOptions& options = {});
  Result<void> put(std::string_view key, ConstBytes value, const PutOptions& options = {});

  // The asynchronous front: see batcher.h.
  std::vector<PutFuture> submit_put_many(AsyncPut put);

  // Values in the order of keys; kNotFound for a missing one. All transfers go out together.
  std::vector<Result<std::string>> get_many(std::span<const std::string_view> keys);
  Result<std::string> get(std::string_view key);
  // Reads each value into the caller's buffer and returns its size; kTooLarge when it does not
  // fit, with the buffer untouched.
  std::vector<Result<std::size_t>> get_many_into(std::span<const std::string_view> keys,
                                                 std::span<const Bytes> targets);

  [[nodiscard]] bool contains(std::string_view key) const;
  [[nodiscard]] std::vector<bool> exists_many(std::span<const std::string_view> keys) const;
  // Whether a put of the key is between its reservation and its publication.
  [[nodiscard]] bool exists_inflight(std::string_view key) const;
  [[nodiscard]] std::vector<bool> exists_inflight_many(
      std::span<const std::string_view> keys) const;

  // Removes files; recorded at once, durable with the next flush.
  std::vector<Result<void>> remove_many(std::span<const std::string_view> keys);
  Result<void> remove(std::string_view key);
  // Replaces an existing target atomically. Missing directories of `to` are made.
  Result<void> rename(std::string_view from, std::string_view to);

  // Every key below `prefix` (a directory; empty: all), sorted by name within each directory.
  Result<std::vector<ListedKey>> list(std::string_view prefix = {}) const;

  // Everything put so far survives power loss.
  Result<void> flush();
  Result<void> checkpoint();
  // Waits for puts under way, flushes, checkpoints, and marks the store clean. Idempotent.
  Result<void> close();

  [[nodiscard]] Volume& volume() { return *volume_; }
  [[nodiscard]] Batcher& batcher() { return *batcher_; }

 private:
  Store(std::unique_ptr<Volume> volume, const BatcherOptions& options);
  std::unique_ptr<Volume> volume_;
  std::unique_ptr<Batcher> batcher_;
  struct Combiner;  // core/put_combiner.h
  std::unique_ptr<Combiner> combiner_;
};

}  // namespace kvslot
