// A load for a mounted store that may die at any moment: threads that write, append, rewrite, cut,
// rename, remove and sync, each with keys of its own, and note what they do before and after each
// system call.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/crash_history.h"
#include "tests/support/tree_content.h"

namespace kvslot::testing {

struct CrashLoadOptions {
  std::uint64_t seed = 0;
  int threads = 4;
  bool is_sync = false;  // the mount has -o sync: close and names are durable when answered
  std::uint64_t value_size_bytes_max = 4 << 20;
};

class CrashLoad {
 public:
  // `before`: what is there.
  CrashLoad(const std::string& root, const CrashLoadOptions& options, const TreeContent& before);
  ~CrashLoad();

  // Works until the store does not answer any more. on_operation is called, from all threads, with
  // the number of operations that were acknowledged so far.
  void run(const std::function<void(std::uint64_t)>& on_operation);
  // To be called right before the store is made to die: from now on operations may fail.
  void expect_end() { is_ending_ = true; }

  // What failed before that, and what is wrong with what was found afterwards.
  [[nodiscard]] std::string judge(const TreeContent& after) const;

 private:
  class Worker;
  CrashClock clock_;
  std::atomic<bool> is_ending_ = false;
  std::atomic<std::uint64_t> acknowledged_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace kvslot::testing
