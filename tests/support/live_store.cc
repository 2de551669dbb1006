// See live_store.h.
#include "tests/support/live_store.h"

#include <gtest/gtest.h>

#include <utility>

namespace kvslot::testing {
namespace {

// The answer of an operation that calls back.
template <typename Call>
std::future<Result<void>> begin(Call call) {
  auto answer = std::make_shared<std::promise<Result<void>>>();
  call([answer](Result<void> result) { answer->set_value(std::move(result)); });
  return answer->get_future();
}

}  // namespace

LiveStore::LiveStore(std::uint64_t size_bytes, std::uint32_t slot_size_bytes,
                     std::uint64_t staging_bytes)
    : staging_bytes_(staging_bytes) {
  start(make_device(size_bytes, slot_size_bytes));
}

LiveStore::~LiveStore() { stop(); }

// ---- Lives

void LiveStore::start(std::unique_ptr<SimulatedDevice> device) {
  device_ = std::shared_ptr<SimulatedDevice>(std::move(device));
  // As in a mount; time is over when a test says so.
  auto watched = std::make_unique<WatchedDevice>(std::make_unique<BorrowedDevice>(device_),
                                                 WatchOptions{.deadline = {}});
  watched_ = watched.get();
  auto opened =
      Volume::open(std::move(watched),
                   {.inline_checkpoints = false, .staging_size_bytes = staging_bytes_, .seed = 1});
  ASSERT_TRUE(opened) << opened.error().step;
  volume_ = std::move(*opened);
  batcher_ = std::make_unique<Batcher>(*volume_, BatcherOptions{.commit_interval_ms = 3'600'000});
  pool_ = std::make_unique<ReaderPool>(ReaderPoolOptions{.threads_max = 4});
  filesystem_ = std::make_unique<Filesystem>(*volume_, *batcher_, *pool_, options_);
  filesystem_->parked().set_parting_wait({});  // there is no kernel that lets go of files
}

// What handles of a test may still point to lives until the test is over.
void LiveStore::stop() {
  batcher_->close();
  pool_->close();
  past_.push_back(
      {std::move(volume_), std::move(batcher_), std::move(pool_), std::move(filesystem_)});
}

void LiveStore::crash(CrashMode mode) {
  auto left = device_->survivor(++crashes_, mode);
  device_->crash_after_operations(0);
  stop();
  start(std::move(left));
}

void LiveStore::reopen() {
  EXPECT_TRUE(sync());
  batcher_->close();
  EXPECT_TRUE(volume_->close());
  auto left = device_->survivor(++crashes_, CrashMode::kNone);
  stop();
  start(std::move(left));
}

// ---- Names

Handle LiveStore::create(std::string_view name, NodeId parent) {
  const auto made = fs().make(parent, name, NodeKind::kFile, 0644, {});
  EXPECT_TRUE(made) << name;
  return made ? open(made->info.node) : nullptr;
}

Handle LiveStore::open(NodeId node, const OpenMode& mode) {
  auto handle = fs().open(node, mode);
  EXPECT_TRUE(handle);
  return handle ? std::move(*handle) : nullptr;
}

Handle LiveStore::open(std::string_view name, const OpenMode& mode) {
  return open(node_of(name), mode);
}

NodeId LiveStore::node_of(std::string_view name) {
  const auto info = volume().lookup(NodeId::kRoot, name);
  EXPECT_TRUE(info) << name;
  return info ? info->node : NodeId::kNone;
}

bool LiveStore::exists(std::string_view name) {
  return volume().lookup(NodeId::kRoot, name).has_value();
}

FileStatus LiveStore::status(NodeId node) {
  const auto found = fs().status(node);
  EXPECT_TRUE(found);
  return found.value_or(FileStatus{});
}

Result<void> LiveStore::rename(std::string_view from, std::string_view to, RenameMode mode) {
  return begin([&](Done done) {
           fs().rename(NodeId::kRoot, from, NodeId::kRoot, to, mode, std::move(done));
         })
      .get();
}

Result<void> LiveStore::unlink(std::string_view name) {
  return fs().remove(NodeId::kRoot, name, RemoveKind::kNotDirectory);
}

Result<void> LiveStore::settle_names() {
  return begin([&](Done done) { fs().settle_names(std::move(done)); }).get();
}

// ---- Contents

std::future<Result<void>> LiveStore::begin_write(const Handle& handle, std::uint64_t offset,
                                                 std::string_view text) {
  return begin(
      [&](Done done) { fs().write(*handle, offset, bytes_of(text), {}, std::move(done)); });
}

Result<void> LiveStore::write(const Handle& handle, std::uint64_t offset, std::string_view text) {
  return begin_write(handle, offset, text).get();
}

Result<void> LiveStore::allocate(const Handle& handle, Filesystem::Allocate what,
                                 std::uint64_t offset, std::uint64_t length) {
  return begin([&](Done done) { fs().allocate(*handle, what, offset, length, std::move(done)); })
      .get();
}

Result<FileStatus> LiveStore::truncate(NodeId node, std::uint64_t size_bytes) {
  return fs().change_status(node, {.size_bytes = size_bytes, .attributes = {}});
}

Result<FileStatus> LiveStore::truncate(const Handle& handle, std::uint64_t size_bytes) {
  return fs().change_status(
      handle->file->node,
      {.size_bytes = size_bytes, .attributes = {}, .through_writer = handle->writes});
}

Result<void> LiveStore::write_durably(const Handle& handle, std::uint64_t offset,
                                      std::string_view text) {
  return begin([&](Done done) {
           fs().write(*handle, offset, bytes_of(text), {.syncs = true}, std::move(done));
         })
      .get();
}

Result<std::string> LiveStore::read(const Handle& handle, std::uint64_t offset, std::size_t size) {
  std::promise<Result<std::string>> answer;
  fs().read(*handle, offset, size, [&answer](Result<ReadView> view) {
    if (view)
      answer.set_value(text_of(*view));
    else
      answer.set_value(fail(view));
  });
  return answer.get_future().get();
}

std::string LiveStore::content(const Handle& handle) {
  const auto text = read(handle, 0, 1 << 26);
  EXPECT_TRUE(text);
  return text.value_or("<error>");
}

std::string LiveStore::content(std::string_view name) {
  Handle handle = open(name, {});
  std::string text = content(handle);
  static_cast<void>(close(std::move(handle)));
  return text;
}

Result<void> LiveStore::flush(const Handle& handle) {
  return begin([&](Done done) { fs().flush(*handle, std::move(done)); }).get();
}

std::future<Result<void>> LiveStore::begin_fsync(const Handle& handle) {
  return begin([&](Done done) { fs().fsync(*handle, std::move(done)); });
}

Result<void> LiveStore::fsync(const Handle& handle) { return begin_fsync(handle).get(); }

Result<void> LiveStore::sync() {
  return begin([&](Done done) { fs().sync_all(std::move(done)); }).get();
}

Result<void> LiveStore::close(Handle handle) {
  Result<void> result = flush(handle);
  fs().release(std::move(handle));
  return result;
}

}  // namespace kvslot::testing
