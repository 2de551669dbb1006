// A file system over a device in memory, without a mount, and its operations as a few verbs.
#pragma once

#include <gtest/gtest.h>
#include <kvslot/batcher.h>
#include <kvslot/volume.h>
#include <kvslot/watched_device.h>

#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fs/filesystem.h"
#include "tests/support/engine.h"

namespace kvslot::testing {

using Handle = std::unique_ptr<OpenFile>;

class LiveStore {
 public:
  explicit LiveStore(std::uint64_t size_bytes = 64 * kMiB, std::uint32_t slot_size_bytes = 4096,
                     std::uint64_t staging_bytes = 16 * kMiB)
      : staging_bytes_(staging_bytes) {
    start(make_device(size_bytes, slot_size_bytes));
  }
  ~LiveStore() { stop(); }

  Filesystem& fs() { return *filesystem_; }
  Volume& volume() { return *volume_; }
  SimulatedDevice& device() { return *device_; }
  WatchedDevice& watched() { return *watched_; }
  MountOptions& options() { return options_; }

  // Loses power and opens what is left.
  void crash(CrashMode mode = CrashMode::kNone) {
    auto left = device_->survivor(++crashes_, mode);
    device_->crash_after_operations(0);
    stop();
    start(std::move(left));
  }
  // Commits and closes everything, as at unmount, and opens it again.
  void reopen() {
    EXPECT_TRUE(sync());
    batcher_->close();
    EXPECT_TRUE(volume_->close());
    auto left = device_->survivor(++crashes_, CrashMode::kNone);
    stop();
    start(std::move(left));
  }

  Handle create(std::string_view name, NodeId parent = NodeId::kRoot) {
    const auto status = fs().make(parent, name, NodeKind::kFile, 0644, {});
    EXPECT_TRUE(status) << name;
    return status ? open(status->info.node) : nullptr;
  }
  Handle open(NodeId node, const OpenMode& mode = {.writes = true}) {
    auto handle = fs().open(node, mode);
    EXPECT_TRUE(handle);
    return handle ? std::move(*handle) : nullptr;
  }
  Handle open(std::string_view name, const OpenMode& mode = {.writes = true}) {
    return open(node_of(name), mode);
  }
  NodeId node_of(std::string_view name) {
    const auto info = volume().lookup(NodeId::kRoot, name);
    EXPECT_TRUE(info) << name;
    return info ? info->node : NodeId::kNone;
  }
  bool exists(std::string_view name) { return volume().lookup(NodeId::kRoot, name).has_value(); }

  Result<void> write(const Handle& handle, std::uint64_t offset, std::string_view text) {
    return wait(
        [&](Done done) { fs().write(*handle, offset, bytes_of(text), {}, std::move(done)); });
  }
  Result<void> allocate(const Handle& handle, Filesystem::Allocate what, std::uint64_t offset,
                        std::uint64_t length) {
    return wait([&](Done done) { fs().allocate(*handle, what, offset, length, std::move(done)); });
  }
  Result<std::string> read(const Handle& handle, std::uint64_t offset, std::size_t size) {
    std::promise<Result<std::string>> answer;
    fs().read(*handle, offset, size, [&answer](Result<ReadView> view) {
      if (view)
        answer.set_value(text_of(*view));
      else
        answer.set_value(fail(view));
    });
    return answer.get_future().get();
  }
  std::string content(const Handle& handle) {
    const auto text = read(handle, 0, 1 << 26);
    EXPECT_TRUE(text);
    return text.value_or("<error>");
  }
  std::string content(std::string_view name) {
    Handle handle = open(name, {});
    std::string text = content(handle);
    close(std::move(handle));
    return text;
  }
  Result<void> flush(const Handle& handle) {
    return wait([&](Done done) { fs().flush(*handle, std::move(done)); });
  }
  Result<void> fsync(const Handle& handle) {
    return wait([&](Done done) { fs().fsync(*handle, std::move(done)); });
  }
  // The same for a commit that a test holds up.
  std::future<Result<void>> begin_fsync(const Handle& handle) {
    auto answer = std::make_shared<std::promise<Result<void>>>();
    fs().fsync(*handle, [answer](Result<void> result) { answer->set_value(std::move(result)); });
    return answer->get_future();
  }
  std::future<Result<void>> begin_write(const Handle& handle, std::uint64_t offset,
                                        std::string_view text) {
    auto answer = std::make_shared<std::promise<Result<void>>>();
    fs().write(*handle, offset, bytes_of(text), {},
               [answer](Result<void> result) { answer->set_value(std::move(result)); });
    return answer->get_future();
  }
  Result<void> settle_names() {
    return wait([&](Done done) { fs().settle_names(std::move(done)); });
  }
  Result<void> sync() {
    return wait([&](Done done) { fs().sync_all(std::move(done)); });
  }
  // As close(2): what FLUSH says.
  Result<void> close(Handle handle) {
    Result<void> result = flush(handle);
    fs().release(std::move(handle));
    return result;
  }
  Result<FileStatus> truncate(NodeId node, std::uint64_t size_bytes) {
    return fs().change_status(node, {.size_bytes = size_bytes, .attributes = {}});
  }
  FileStatus status(NodeId node) {
    const auto status = fs().status(node);
    EXPECT_TRUE(status);
    return status.value_or(FileStatus{});
  }
  Result<void> rename(std::string_view from, std::string_view to,
                      RenameMode mode = RenameMode::kReplace) {
    return wait([&](Done done) {
      fs().rename(NodeId::kRoot, from, NodeId::kRoot, to, mode, std::move(done));
    });
  }
  Result<void> unlink(std::string_view name) {
    return fs().remove(NodeId::kRoot, name, RemoveKind::kNotDirectory);
  }
  std::uint64_t free_blocks() { return volume().space().free_blocks; }

 private:
  template <typename Call>
  Result<void> wait(Call call) {
    std::promise<Result<void>> answer;
    call([&answer](Result<void> result) { answer.set_value(std::move(result)); });
    return answer.get_future().get();
  }

  void start(std::unique_ptr<SimulatedDevice> device) {
    device_ = std::shared_ptr<SimulatedDevice>(std::move(device));
    // As in a mount; time is over when a test says so.
    auto watched = std::make_unique<WatchedDevice>(std::make_unique<BorrowedDevice>(device_),
                                                   WatchOptions{.deadline = {}});
    watched_ = watched.get();
    auto opened = Volume::open(
        std::move(watched),
        {.inline_checkpoints = false, .staging_size_bytes = staging_bytes_, .seed = 1});
    ASSERT_TRUE(opened) << opened.error().step;
    volume_ = std::move(*opened);
    batcher_ = std::make_unique<Batcher>(*volume_, BatcherOptions{.commit_interval_ms = 3'600'000});
    pool_ = std::make_unique<ReaderPool>(ReaderPoolOptions{.threads_max = 4});
    filesystem_ = std::make_unique<Filesystem>(*volume_, *batcher_, *pool_, options_);
  }
  // What handles of a test may still point to lives until the test is over.
  void stop() {
    batcher_->close();
    pool_->close();
    past_.push_back(
        {std::move(volume_), std::move(batcher_), std::move(pool_), std::move(filesystem_)});
  }

  struct Life {
    std::unique_ptr<Volume> volume;
    std::unique_ptr<Batcher> batcher;
    std::unique_ptr<ReaderPool> pool;
    std::unique_ptr<Filesystem> filesystem;
  };

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

// Tests of a file system over a device in memory.
class FilesystemTest : public ::testing::Test {
 protected:
  // A stored file.
  NodeId put(std::string_view name, std::string_view text) {
    Handle handle = store_.create(name);
    EXPECT_TRUE(store_.write(handle, 0, text));
    const NodeId node = handle->file->node;
    EXPECT_TRUE(store_.fsync(handle));
    EXPECT_TRUE(store_.close(std::move(handle)));
    return node;
  }

  LiveStore store_;
};

}  // namespace kvslot::testing
