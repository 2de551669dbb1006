// Many threads' changes become one commit. Idle: a change leaves at once. Device busy: it joins
// the next batch. There is no timer in the put path.
//
// Step before: store.h or fs/. Step after: Volume::commit.
#pragma once

#include <kvslot/error.h>
#include <kvslot/options.h>
#include <kvslot/types.h>
#include <kvslot/volume.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvslot {

// What an asynchronous put of many keys came to. The future holds an exception (PutFailed) only
// when every key failed.
struct AsyncPutReport {
  std::vector<std::string> stored;                    // newly stored keys, in order
  std::vector<std::pair<std::string, Error>> failed;  // empty when all went well
};
using PutFuture = std::shared_future<AsyncPutReport>;

// A value lent to the engine. `value` stays valid until the last copy of `owner` is gone; the
// engine lets go of `owner` exactly once, whatever happens.
struct LentValue {
  ConstBytes value;
  std::shared_ptr<const void> owner;
};

struct AsyncPut {
  std::vector<std::string> keys;
  std::vector<LentValue> values;                          // values.size() == keys.size()
  std::function<void(std::string_view key)> on_complete;  // once per stored key, after publication
  Durability durability = Durability::kWritten;
};

// Thrown out of a PutFuture whose keys all failed.
class PutFailed : public std::exception {
 public:
  explicit PutFailed(Error first) : first_(first) {}
  [[nodiscard]] const char* what() const noexcept override { return first_.step; }
  [[nodiscard]] const Error& error() const { return first_; }

 private:
  Error first_;
};

// Threads: thread-safe. Owns the committer, the flusher and the checkpointer threads.
class Batcher {
 public:
  // Called once, from one of the batcher's threads, under no lock. The change comes back with its
  // result, its placed windows, and (when it failed) its buffers.
  using OnDone = std::function<void(ContentChange change)>;
  using OnFlushed = std::function<void(Result<void> result)>;

  // Throws std::system_error where there are no threads to be had.
  Batcher(Volume& volume, const BatcherOptions& options);
  ~Batcher();  // drains

  // Queues a change. Always accepted; bounded by what callers stage (reserve_slots, buffers).
  // After close(): on_done is called at once, on this thread, with kBusy, and this returns false.
  bool submit(ContentChange change, Durability durability, OnDone on_done);

  // Calls back when everything submitted or recorded before this call is durable.
  void barrier(OnFlushed on_flushed);

  // Puts keys[i] = values[i] in one dispatch. Keys that are in flight already are skipped, keys
  // already stored are not written again.
  //   shapes   one future per accepted key, all the same one; none accepted: empty
  //   errors   in the future; a throwing on_complete harms nobody
  std::vector<PutFuture> submit_put_many(AsyncPut put);

  // Waits until everything submitted has been answered; then stops the threads. Idempotent.
  void close();

  // Makes the dispatch of later submissions fail, as at shutdown. For tests.
  void fail_dispatch_for_testing();

  [[nodiscard]] std::uint64_t dispatches() const;
  [[nodiscard]] std::size_t queued() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvslot
