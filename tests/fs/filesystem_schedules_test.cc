// What comes while a file's commit stands still at the device: the file is removed, renamed, cut,
// written, made durable again; and what each of it leaves after power loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "tests/fs/filesystem_fixture.h"

namespace kvslot::testing {
namespace {

class FilesystemSchedules : public FilesystemTest {
 protected:
  static constexpr std::size_t kSize = 300000;  // three windows

  // A file with `text` whose commit has reached the device and stands still there.
  Handle begin_commit(std::string_view name, std::string_view text) {
    Handle handle = store_.create(name);
    EXPECT_TRUE(store_.write(handle, 0, text));
    store_.device().hold(OperationKind::kWrite);
    committed_ = store_.begin_fsync(handle);
    store_.device().wait_until_held(1);
    return handle;
  }
  void end_commit() {
    store_.device().release();
    EXPECT_TRUE(committed_.get());
  }
  // Everything is stored, and the space of what is not is free again.
  void expect_stored(std::string_view name, std::string_view text) {
    EXPECT_TRUE(store_.sync());
    expect_slots_accounted(store_.volume());
    store_.crash(CrashMode::kNone);
    EXPECT_EQ(store_.content(name), text);
  }

  std::future<Result<void>> committed_;
};

TEST_F(FilesystemSchedules, AFileRemovedDuringItsFirstCommitIsGone) {
  Handle handle = begin_commit("file", value_of(1, kSize));
  const NodeId node = store_.node_of("file");
  EXPECT_TRUE(store_.unlink("file"));
  end_commit();
  EXPECT_EQ(store_.content(handle), value_of(1, kSize)) << "the handle goes on";
  EXPECT_TRUE(store_.close(std::move(handle)));
  store_.fs().forget(node, 1);
  EXPECT_TRUE(store_.sync());
  expect_slots_accounted(store_.volume());
  store_.crash(CrashMode::kNone);
  EXPECT_FALSE(store_.exists("file"));
  EXPECT_EQ(stat_of(store_.volume(), "slots_live"), 0U);
}

TEST_F(FilesystemSchedules, AnotherFileTakesTheNameDuringTheCommitOfTheFirst) {
  Handle first = begin_commit("file", value_of(1, kSize));
  EXPECT_TRUE(store_.unlink("file"));
  Handle second = store_.create("file");
  EXPECT_TRUE(store_.write(second, 0, "second"));
  auto durable = store_.begin_fsync(second);
  end_commit();
  EXPECT_TRUE(durable.get());
  EXPECT_TRUE(store_.close(std::move(first)));
  EXPECT_TRUE(store_.close(std::move(second)));
  expect_stored("file", "second");
}

TEST_F(FilesystemSchedules, ARenameDuringTheCommitIsStoredWithIt) {
  put("target", "old");
  Handle handle = begin_commit("file", value_of(1, kSize));
  EXPECT_TRUE(store_.rename("file", "target"));
  end_commit();
  EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_FALSE(store_.exists("file"));
  expect_stored("target", value_of(1, kSize));
  EXPECT_FALSE(store_.exists("file"));
}

TEST_F(FilesystemSchedules, TheFileIsReplacedDuringItsCommit) {
  Handle other = store_.create("other");
  EXPECT_TRUE(store_.write(other, 0, "other"));
  Handle handle = begin_commit("file", value_of(1, kSize));
  EXPECT_TRUE(store_.rename("other", "file"));
  end_commit();
  EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_EQ(store_.content("file"), "other");
  EXPECT_TRUE(store_.close(std::move(other)));
  expect_stored("file", "other");
}

// A sync takes what there is of a new file, and waits for its turn while the file is written on and
// takes another one's name.
TEST_F(FilesystemSchedules, AFileOfWhichAPartIsOnItsWayTakesNoNameBeforeTheRestIsStored) {
  put("target", "the target");
  Handle busy = begin_commit("busy", "x");
  Handle handle = store_.create("new");
  EXPECT_TRUE(store_.write(handle, 0, "the new"));
  std::promise<Result<void>> synced, renamed;
  store_.fs().sync_all([&](Result<void> result) { synced.set_value(std::move(result)); });
  EXPECT_TRUE(store_.write(handle, 7, " value"));
  store_.fs().rename(NodeId::kRoot, "new", NodeId::kRoot, "target", RenameMode::kReplace,
                     [&](Result<void> result) { renamed.set_value(std::move(result)); });
  end_commit();
  EXPECT_TRUE(renamed.get_future().get());
  EXPECT_TRUE(synced.get_future().get());
  EXPECT_EQ(store_.content("target"), "the new value");
  store_.crash(CrashMode::kNone);
  EXPECT_THAT(store_.content("target"), ::testing::AnyOf("the target", "the new value"));
}

// Windows that go to the device early, to free memory, are no commit.
TEST_F(FilesystemSchedules, AFileThatIsStillWrittenIsNotStoredForItsNewName) {
  put("target", "the target");
  Handle handle = store_.create("new");
  ASSERT_TRUE(store_.write(handle, 0, value_of(1, kSize)));
  store_.device().hold(OperationKind::kWrite);
  store_.fs().publisher().spill_anything();
  store_.device().wait_until_held(1);
  std::promise<Result<void>> renamed;
  store_.fs().rename(NodeId::kRoot, "new", NodeId::kRoot, "target", RenameMode::kReplace,
                     [&](Result<void> result) { renamed.set_value(std::move(result)); });
  store_.device().release();
  EXPECT_TRUE(renamed.get_future().get());
  put("another", "takes the names along");
  store_.crash(CrashMode::kNone);
  EXPECT_EQ(store_.content("target"), "the target");
}

TEST_F(FilesystemSchedules, WhatIsWrittenDuringACommitIsNoPartOfIt) {
  const std::string text = value_of(1, kSize);
  Handle handle = begin_commit("file", text);
  EXPECT_TRUE(store_.write(handle, 1000, "later"));
  EXPECT_TRUE(store_.write(handle, kSize, "longer"));
  std::string both = text + "longer";
  both.replace(1000, 5, "later");
  EXPECT_EQ(store_.content(handle), both);
  end_commit();
  EXPECT_EQ(store_.content(handle), both);
  store_.crash(CrashMode::kNone);
  EXPECT_EQ(store_.content("file"), text) << "the bytes of the moment of fsync";
}

TEST_F(FilesystemSchedules, ATruncationDuringTheCommitIsTheNextCommit) {
  const std::string text = value_of(1, kSize);
  Handle handle = begin_commit("file", text);
  EXPECT_TRUE(store_.truncate(handle->file->node, 1000));
  EXPECT_TRUE(store_.truncate(handle->file->node, 2000));
  const std::string cut = text.substr(0, 1000) + std::string(1000, '\0');
  EXPECT_EQ(store_.content(handle), cut) << "what was cut off does not come back";
  auto again = store_.begin_fsync(handle);
  end_commit();
  EXPECT_TRUE(again.get());
  EXPECT_TRUE(store_.close(std::move(handle)));
  expect_stored("file", cut);
}

TEST_F(FilesystemSchedules, AReaderOfReplacedBytesGetsOneValueOrTheOther) {
  const std::string old = value_of(1, kSize);
  const NodeId node = put("file", old);
  Handle reader = store_.open(node, {});
  store_.device().hold(OperationKind::kRead);
  auto found = std::async(std::launch::async, [&] { return store_.content(reader); });
  store_.device().wait_until_held(1);
  Handle writer = store_.open(node);
  const std::string text = value_of(2, kSize);
  EXPECT_TRUE(store_.write(writer, 0, text));
  EXPECT_TRUE(store_.fsync(writer));
  // Were the old slots free, these would be written to them.
  for (int i = 0; i < 20; ++i) put("more" + std::to_string(i), value_of(3, kSize));
  store_.device().release();
  EXPECT_EQ(found.get(), old) << "it began before the write";
  EXPECT_EQ(store_.content(reader), text);
  EXPECT_TRUE(store_.close(std::move(writer)));
  EXPECT_TRUE(store_.close(std::move(reader)));
  expect_stored("file", text);
}

TEST_F(FilesystemSchedules, AFailedFlushReachesEveryOneWhoWaitsOnce) {
  Handle first = store_.create("file");
  ASSERT_TRUE(store_.write(first, 0, value_of(1, kSize)));
  Handle second = store_.open("file");
  store_.device().hold(OperationKind::kFlush);
  std::vector<std::future<Result<void>>> waiting;
  waiting.push_back(store_.begin_fsync(first));
  store_.device().wait_until_held(1);
  EXPECT_TRUE(store_.write(second, 0, "more"));
  waiting.push_back(store_.begin_fsync(second));
  waiting.push_back(store_.begin_fsync(first));
  auto all = std::make_shared<std::promise<Result<void>>>();
  waiting.push_back(all->get_future());
  store_.fs().sync_all([all](Result<void> result) { all->set_value(std::move(result)); });
  store_.device().add_fault({.kind = OperationKind::kFlush});
  store_.device().release();
  for (auto& each : waiting) EXPECT_FALSE(each.get());
  EXPECT_EQ(store_.content(first).substr(0, 4), "more") << "what was written can still be read";
  static_cast<void>(store_.close(std::move(first)));
  static_cast<void>(store_.close(std::move(second)));
}

}  // namespace
}  // namespace kvslot::testing
