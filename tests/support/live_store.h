// A file system over a device in memory, without a mount, and its operations as a few verbs.
#pragma once

#include <kvslot/batcher.h>
#include <kvslot/volume.h>
#include <kvslot/watched_device.h>

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fs/filesystem.h"
#include "tests/support/engine.h"

namespace kvslot::testing {

using Handle = std::unique_ptr<OpenFile>;

// Threads: one thread at a time; the file system has threads of its own.
class LiveStore {
 public:
  explicit LiveStore(std::uint64_t size_bytes = 64 * kMiB, std::uint32_t slot_size_bytes = 4096,
                     std::uint64_t staging_bytes = 16 * kMiB);
  ~LiveStore();

  Filesystem& fs() { return *filesystem_; }
  Volume& volume() { return *volume_; }
  SimulatedDevice& device() { return *device_; }
  WatchedDevice& watched() { return *watched_; }
  MountOptions& options() { return options_; }

  // Loses power and opens what is left.
  void crash(CrashMode mode = CrashMode::kNone);
  // Commits and closes everything, as at unmount, and opens it again.
  void reopen();

  Handle create(std::string_view name, NodeId parent = NodeId::kRoot);
  Handle open(NodeId node, const OpenMode& mode = {.writes = true});
  Handle open(std::string_view name, const OpenMode& mode = {.writes = true});
  NodeId node_of(std::string_view name);
  bool exists(std::string_view name);

  Result<void> write(const Handle& handle, std::uint64_t offset, std::string_view text);
  Result<void> allocate(const Handle& handle, Filesystem::Allocate what, std::uint64_t offset,
                        std::uint64_t length);
  Result<std::string> read(const Handle& handle, std::uint64_t offset, std::size_t size);
  std::string content(const Handle& handle);
  std::string content(std::string_view name);
  Result<void> flush(const Handle& handle);
  Result<void> fsync(const Handle& handle);
  // The same for what a test holds up.
  std::future<Result<void>> begin_fsync(const Handle& handle);
  std::future<Result<void>> begin_write(const Handle& handle, std::uint64_t offset,
                                        std::string_view text);
  Result<void> settle_names();
  Result<void> sync();
  // As close(2): what FLUSH says.
  Result<void> close(Handle handle);
  Result<FileStatus> truncate(NodeId node, std::uint64_t size_bytes);  // by its path
  Result<FileStatus> truncate(const Handle& handle, std::uint64_t size_bytes);
  // As through a descriptor that was opened with O_SYNC.
  Result<void> write_durably(const Handle& handle, std::uint64_t offset, std::string_view text);
  FileStatus status(NodeId node);
  Result<void> rename(std::string_view from, std::string_view to,
                      RenameMode mode = RenameMode::kReplace);
  Result<void> unlink(std::string_view name);
  std::uint64_t free_blocks() { return volume().space().free_blocks; }

 private:
  struct Life {
    std::unique_ptr<Volume> volume;
    std::unique_ptr<Batcher> batcher;
    std::unique_ptr<ReaderPool> pool;
    std::unique_ptr<Filesystem> filesystem;
  };

  void start(std::unique_ptr<SimulatedDevice> device);
  void stop();

  std::uint64_t staging_bytes_;
  std::uint64_t crashes_ = 0;
  MountOptions options_;
  std::shared_ptr<SimulatedDevice> device_;
  WatchedDevice* watched_ = nullptr;  // the volume's
  std::unique_ptr<Volume> volume_;
  std::unique_ptr<Batcher> batcher_;
  std::unique_ptr<ReaderPool> pool_;
  std::unique_ptr<Filesystem> filesystem_;
  std::vector<Life> past_;
};

[[nodiscard]] inline int errno_of(const Result<void>& result) {
  return result ? 0 : to_errno(result.error());
}

}  // namespace kvslot::testing
