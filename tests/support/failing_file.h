// A file that fails, fills up or keeps its requests, as the test says: a FUSE file system of one
// file, `device`, over a file that is well. For tests/system: an image for the command that can go
// bad.
#pragma once

#include <kvslot/mutex.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

struct fuse_session;

namespace kvslot::testing {

enum class FileOperation : unsigned char { kRead, kWrite, kFlush };

// Threads: thread-safe. Needs a machine that can mount (why_no_mount()).
class FailingFile {
 public:
  // Shows the file at `backing` as `directory`/device; the directory is made.
  FailingFile(const std::string& backing, const std::string& directory);
  ~FailingFile();  // answers what it keeps with EIO, and goes
  FailingFile(const FailingFile&) = delete;
  FailingFile& operator=(const FailingFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool is_mounted() const { return session_ != nullptr; }

  // From now on such operations fail with the errno; 0: they are carried out again.
  void fail(FileOperation operation, int os_errno);
  // From now on such operations are kept, without an answer.
  void hold(FileOperation operation);
  // Not where the test has failed already.
  void wait_until_held(std::size_t requests);
  // Carries out what is kept, and keeps nothing any more.
  void release();

  struct Request;
  struct State;

 private:
  std::string directory_;
  std::string path_;
  std::unique_ptr<State> state_;
  fuse_session* session_ = nullptr;
  std::thread server_;
  std::atomic<bool> is_serving_ = false;
};

}  // namespace kvslot::testing
