// What each file operation means, without a mount: fs/SEMANTICS.md, line by line.
#include "fs/filesystem.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/fs/filesystem_fixture.h"

namespace kvslot::testing {
namespace {

// ---- The live view

TEST_F(FilesystemTest, EveryOpenerSeesAWriteAtOnce) {
  Handle writer = store_.create("f");
  Handle reader = store_.open("f", {});
  EXPECT_EQ(store_.content(reader), "");
  EXPECT_TRUE(store_.write(writer, 0, "hello"));
  EXPECT_EQ(store_.content(reader), "hello");
  EXPECT_EQ(store_.status(store_.node_of("f")).info.size_bytes, 5U);
}

// What is asked after a write never shows the state of before it, wherever its commit just is.
TEST_F(FilesystemTest, AStatusNeverGoesBackToBeforeAnEarlierWrite) {
  const NodeId node = put("f", "x");
  std::atomic<std::uint64_t> written = 1;
  std::atomic<bool> has_ended = false;
  std::uint64_t too_small = 0;
  std::thread reader([&] {
    while (!has_ended) {
      const std::uint64_t least = written;
      if (store_.status(node).info.size_bytes < least) ++too_small;
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 100; ++i) {
    Handle handle = store_.open(node);
    EXPECT_TRUE(store_.write(handle, written, "y"));
    ++written;
    EXPECT_TRUE(store_.close(std::move(handle)));
  }
  has_ended = true;
  reader.join();
  EXPECT_EQ(too_small, 0U);
}

TEST_F(FilesystemTest, OpeningADirectoryAsAFileSaysSo) {
  const auto opened = store_.fs().open(NodeId::kRoot, {.writes = true});
  ASSERT_FALSE(opened);
  EXPECT_EQ(to_errno(opened.error()), EISDIR);
}

// ---- Commit points

TEST_F(FilesystemTest, AFlushOfAnEmptyNewFileWritesNothing) {
  store_.device().clear_calls();
  Handle handle = store_.create("f");
  EXPECT_TRUE(store_.flush(handle));  // as shells do before they write
  EXPECT_TRUE(store_.volume().stat(handle->file->node)->stored == false);
  EXPECT_TRUE(store_.write(handle, 0, "x"));
  EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_TRUE(store_.sync());
  EXPECT_TRUE(store_.volume().stat(store_.node_of("f"))->stored);
}

TEST_F(FilesystemTest, ATouchedFileSurvivesASync) {
  EXPECT_TRUE(store_.close(store_.create("f")));
  EXPECT_TRUE(store_.sync());
  store_.crash();
  EXPECT_EQ(store_.content("f"), "");
}

TEST_F(FilesystemTest, AFileCreatedThroughAReadOnlyHandleIsStoredAtItsLastClose) {
  const auto made = store_.fs().make(NodeId::kRoot, "f", NodeKind::kFile, 0644, {});
  ASSERT_TRUE(made);
  Handle handle = store_.open(made->info.node, {.writes = false});
  const LiveFileRef file = handle->file;
  EXPECT_TRUE(store_.close(std::move(handle)));
  MutexLock lock(file->mutex);
  EXPECT_FALSE(file->content.needs_commit());  // stored, or on its way
}

TEST_F(FilesystemTest, FsyncMakesTheValueSurvivePowerLoss) {
  Handle handle = store_.create("f");
  EXPECT_TRUE(store_.write(handle, 0, "synced"));
  EXPECT_TRUE(store_.fsync(handle));
  EXPECT_TRUE(store_.write(handle, 0, "newest"));
  store_.fs().release(std::move(handle));
  store_.crash();
  EXPECT_EQ(store_.content("f"), "synced");
}

TEST_F(FilesystemTest, FsyncThroughAReadOnlyHandleFlushesWhatAnotherWrote) {
  Handle writer = store_.create("f");
  EXPECT_TRUE(store_.write(writer, 0, "written"));
  Handle reader = store_.open("f", {});
  EXPECT_TRUE(store_.fsync(reader));
  store_.crash();
  EXPECT_EQ(store_.content("f"), "written");
}

TEST_F(FilesystemTest, FsyncOfACleanFileFlushesItsEarlierCommit) {
  Handle handle = store_.create("f");
  EXPECT_TRUE(store_.write(handle, 0, "closed"));
  EXPECT_TRUE(store_.close(std::move(handle)));
  Handle reader = store_.open("f", {});
  EXPECT_TRUE(store_.fsync(reader));
  store_.crash();
  EXPECT_EQ(store_.content("f"), "closed");
}

TEST_F(FilesystemTest, SyncIsABarrierOverTheWholeStore) {
  std::vector<Handle> handles;
  for (int i = 0; i < 50; ++i) {
    handles.push_back(store_.create("f" + std::to_string(i)));
    EXPECT_TRUE(store_.write(handles.back(), 0, "value" + std::to_string(i)));
  }
  EXPECT_TRUE(store_.rename("f0", "g0"));
  EXPECT_TRUE(store_.sync());
  store_.crash();
  EXPECT_EQ(store_.content("g0"), "value0");
  for (int i = 1; i < 50; ++i)
    EXPECT_EQ(store_.content("f" + std::to_string(i)), "value" + std::to_string(i));
}

TEST_F(FilesystemTest, ADirtySourceIsPublishedUnderItsNewName) {
  put("f", "old");
  Handle handle = store_.create("f.tmp");
  EXPECT_TRUE(store_.write(handle, 0, "new"));
  EXPECT_TRUE(store_.rename("f.tmp", "f"));
  EXPECT_EQ(store_.content("f"), "new");
  EXPECT_TRUE(store_.fsync(handle));
  store_.crash();
  EXPECT_EQ(store_.content("f"), "new");
  EXPECT_FALSE(store_.exists("f.tmp"));
}

TEST_F(FilesystemTest, AWriteToAWindowOnItsWayDoesNotChangeWhatIsCommitted) {
  Handle handle = store_.create("f");
  ASSERT_TRUE(store_.write(handle, 0, std::string(4096, 'a')));
  store_.device().hold(OperationKind::kWrite);
  ASSERT_TRUE(store_.flush(handle));  // on its way, and held there
  store_.device().wait_until_held(1);
  EXPECT_TRUE(store_.write(handle, 0, "bbbb"));
  EXPECT_EQ(store_.content(handle), "bbbb" + std::string(4092, 'a'));
  ASSERT_TRUE(store_.truncate(store_.node_of("f"), 10));
  EXPECT_EQ(store_.content(handle), "bbbbaaaaaa");
  store_.device().release();
  EXPECT_TRUE(store_.fsync(handle));
  store_.crash();
  EXPECT_EQ(store_.content("f"), "bbbbaaaaaa");
}

// ---- Failures

TEST_F(FilesystemTest, AFailedCommitKeepsBothValuesAndIsReportedOnceToEachHandle) {
  put("f", "old");
  Handle handle = store_.open("f");
  Handle other = store_.open("f");
  EXPECT_TRUE(store_.write(handle, 0, "newer"));
  store_.device().set_thin_budget(0);
  EXPECT_EQ(errno_of(store_.fsync(handle)), ENOSPC);
  EXPECT_EQ(store_.content(handle), "newer");
  EXPECT_EQ(errno_of(store_.flush(other)), ENOSPC);
  store_.device().set_thin_budget(std::nullopt);
  EXPECT_TRUE(store_.fsync(handle));
  EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_TRUE(store_.close(std::move(other)));
  store_.crash();
  EXPECT_EQ(store_.content("f"), "newer");
}

TEST_F(FilesystemTest, AnErrorAfterCloseIsReportedByTheNextFsync) {
  put("f", "old");
  Handle handle = store_.open("f");
  EXPECT_TRUE(store_.write(handle, 0, "newer"));
  store_.device().set_thin_budget(0);
  EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_FALSE(store_.sync());
  EXPECT_FALSE(store_.volume().inspector().faults().empty());
  store_.device().set_thin_budget(std::nullopt);
  Handle next = store_.open("f");
  EXPECT_EQ(errno_of(store_.fsync(next)), ENOSPC);
  EXPECT_TRUE(store_.fsync(next));
  store_.crash();
  EXPECT_EQ(store_.content("f"), "newer");
}

TEST_F(FilesystemTest, AReadForACommitThatFailsBecauseTheFileChangedIsDoneAgain) {
  std::string expected(300'000, 'x');
  const NodeId node = put("f", expected);
  Handle handle = store_.open(node);
  ASSERT_TRUE(store_.write(handle, 140'000, "yyyy"));
  store_.device().hold(OperationKind::kRead);
  auto synced = store_.begin_fsync(handle);
  store_.device().wait_until_held(1);
  ASSERT_TRUE(store_.truncate(node, 200'000));
  constexpr std::uint64_t kTries = 2;
  store_.device().add_fault({.kind = OperationKind::kRead, .times = kTries});
  store_.device().release();
  EXPECT_EQ(errno_of(synced.get()), 0);
  expected.resize(200'000);
  expected.replace(140'000, 4, "yyyy");
  store_.crash();
  EXPECT_EQ(store_.content("f"), expected);
}

TEST_F(FilesystemTest, AWriteThatDoesNotFitIsRefusedWholeAndHarmsNobody) {
  put("old", "precious");
  Handle handle = store_.create("big");
  const std::string chunk(kMiB, 'x');
  std::uint64_t written = 0;
  Result<void> result;
  while ((result = store_.write(handle, written, chunk))) written += chunk.size();
  EXPECT_EQ(errno_of(result), ENOSPC);
  EXPECT_EQ(store_.status(store_.node_of("big")).info.size_bytes, written);
  Handle old = store_.open("old", {.writes = true, .truncates = true});
  EXPECT_EQ(errno_of(store_.write(old, 0, chunk)), ENOSPC);
  store_.fs().release(std::move(old));
  EXPECT_TRUE(store_.fsync(handle));
  const NodeId node = handle->file->node;
  EXPECT_TRUE(store_.unlink("big"));
  EXPECT_TRUE(store_.close(std::move(handle)));
  store_.fs().forget(node, 1);
  EXPECT_TRUE(store_.sync());
  Handle again = store_.create("again");
  for (std::uint64_t at = 0; at < written; at += chunk.size()) {
    ASSERT_TRUE(store_.write(again, at, chunk)) << at;
  }
  EXPECT_TRUE(store_.fsync(again));
  EXPECT_EQ(store_.content("old"), "precious");
}

// ---- Names

// The kernel's RELEASE may come while the answer to the FLUSH is still being given.
TEST_F(FilesystemTest, AHandleMayBeReleasedAsSoonAsItsFlushIsAnswered) {
  Handle handle = store_.create("f");
  EXPECT_TRUE(store_.write(handle, 0, "text"));
  EXPECT_TRUE(store_.unlink("f"));
  OpenFile& flushed = *handle;
  Result<void> answer = fail(Errc::kIo, "not answered");
  store_.fs().flush(flushed, [&](const Result<void>& result) {
    answer = result;
    store_.fs().release(std::move(handle));
  });
  EXPECT_TRUE(answer);
}

TEST_F(FilesystemTest, AnUnlinkedFileGoesOnForWhoeverHasItOpenAndIsNeverStored) {
  const std::uint64_t before = store_.free_blocks();
  Handle handle = store_.create("f");
  EXPECT_TRUE(store_.write(handle, 0, std::string(100'000, 'x')));
  EXPECT_TRUE(store_.unlink("f"));
  EXPECT_TRUE(store_.write(handle, 100'000, "more"));
  EXPECT_EQ(store_.content(handle), std::string(100'000, 'x') + "more");
  EXPECT_TRUE(store_.fsync(handle));
  const NodeId node = handle->file->node;
  EXPECT_FALSE(store_.status(node).info.linked);
  EXPECT_TRUE(store_.close(std::move(handle)));
  store_.fs().forget(node, 1);
  EXPECT_TRUE(store_.sync());
  EXPECT_EQ(store_.free_blocks(), before);
  EXPECT_FALSE(store_.volume().stat(node));
}

TEST_F(FilesystemTest, NamesHaveAtMost255Bytes) {
  EXPECT_TRUE(store_.fs().make(NodeId::kRoot, std::string(255, 'a'), NodeKind::kFile, 0644, {}));
  const std::string name(256, 'a');
  const auto made = store_.fs().make(NodeId::kRoot, name, NodeKind::kFile, 0644, {});
  ASSERT_FALSE(made);
  EXPECT_EQ(to_errno(made.error()), ENAMETOOLONG);
  const auto found = store_.fs().lookup(NodeId::kRoot, name);
  ASSERT_FALSE(found);
  EXPECT_EQ(to_errno(found.error()), ENAMETOOLONG);
  put("f", "");
  EXPECT_EQ(errno_of(store_.rename("f", name)), ENAMETOOLONG);
  EXPECT_EQ(errno_of(store_.unlink(name)), ENAMETOOLONG);
}

TEST_F(FilesystemTest, TheControlDirectorysNameIsTaken) {
  const auto made = store_.fs().make(NodeId::kRoot, ".kvslot", NodeKind::kDirectory, 0755, {});
  ASSERT_FALSE(made);
  EXPECT_EQ(to_errno(made.error()), EEXIST);
  put("f", "x");
  EXPECT_EQ(errno_of(store_.rename("f", ".kvslot")), EPERM);
  EXPECT_EQ(errno_of(store_.unlink(".kvslot")), EPERM);
}

TEST_F(FilesystemTest, ASetgidDirectoryGivesItsGroup) {
  const auto directory =
      store_.fs().make(NodeId::kRoot, "d", NodeKind::kDirectory, 02775, {.uid = 1, .gid = 50});
  ASSERT_TRUE(directory);
  const auto file =
      store_.fs().make(directory->info.node, "f", NodeKind::kFile, 0644, {.uid = 7, .gid = 8});
  const auto below =
      store_.fs().make(directory->info.node, "d", NodeKind::kDirectory, 0755, {.uid = 7, .gid = 8});
  EXPECT_EQ(file->info.attributes.uid, 7U);
  EXPECT_EQ(file->info.attributes.gid, 50U);
  EXPECT_EQ(below->info.attributes.gid, 50U);
  EXPECT_NE(below->info.attributes.mode & S_ISGID, 0U);
}

// ---- Attributes

TEST_F(FilesystemTest, TimesSetBeforeTheCommitSurviveIt) {
  constexpr TimestampNs kThen = 981'173'106'123'456'789;
  Handle handle = store_.create("f");
  EXPECT_TRUE(store_.write(handle, 0, "x"));
  const NodeId node = handle->file->node;
  StatusChange change;
  change.attributes.mtime_ns = kThen;
  ASSERT_TRUE(store_.fs().change_status(node, change));
  EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_EQ(store_.status(node).info.attributes.mtime_ns, kThen);
  store_.reopen();
  EXPECT_EQ(store_.status(store_.node_of("f")).info.attributes.mtime_ns, kThen);
}

TEST(Timestamp, TimesThatCannotBeStoredBecomeTheNearestThatCan) {
  constexpr time_t kYear3000 = 32'503'680'000;
  EXPECT_EQ(to_timestamp({.tv_sec = 1, .tv_nsec = 5}), 1'000'000'005);
  EXPECT_EQ(to_timestamp({.tv_sec = -1, .tv_nsec = 999'999'999}), -1);
  EXPECT_EQ(to_timestamp({.tv_sec = kYear3000, .tv_nsec = 0}),
            std::numeric_limits<TimestampNs>::max());
  EXPECT_EQ(to_timestamp({.tv_sec = -kYear3000, .tv_nsec = 0}),
            std::numeric_limits<TimestampNs>::min());
}

TEST_F(FilesystemTest, AWriteStampsTheFileAndTheCommitDoesNot) {
  const NodeId node = put("f", "x");
  const TimestampNs before = store_.status(node).info.attributes.mtime_ns;
  Handle handle = store_.open(node);
  EXPECT_TRUE(store_.write(handle, 0, "y"));
  const TimestampNs written = store_.status(node).info.attributes.mtime_ns;
  EXPECT_GT(written, before);
  EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_TRUE(store_.sync());
  EXPECT_EQ(store_.status(node).info.attributes.mtime_ns, written);
}

TEST_F(FilesystemTest, WhatCountsAsAWriteStampsTheFileAlsoWhereNoByteChanges) {
  using Allocate = Filesystem::Allocate;
  const NodeId node = put("f", "xyz");
  const auto mtime = [&] { return store_.status(node).info.attributes.mtime_ns; };
  const auto set_old = [&] {
    StatusChange change;
    change.attributes.mtime_ns = 1;
    ASSERT_TRUE(store_.fs().change_status(node, change));
  };
  const auto expect_stamped = [&](const char* what) {
    EXPECT_GT(mtime(), 1) << what;
    EXPECT_TRUE(store_.sync());
    EXPECT_GT(mtime(), 1) << what;
  };
  set_old();
  StatusChange change;
  change.size_bytes = 3;
  ASSERT_TRUE(store_.fs().change_status(node, change));
  expect_stamped("a truncation to the same size");
  for (const Allocate what :
       {Allocate::kReserve, Allocate::kReserveKeepSize, Allocate::kPunchHole}) {
    Handle handle = store_.open(node);
    set_old();
    store_.fs().allocate(*handle, what, 0, 3, [](Result<void> result) { EXPECT_TRUE(result); });
    expect_stamped("fallocate");
    EXPECT_TRUE(store_.close(std::move(handle)));
  }
}

TEST_F(FilesystemTest, AChangeOfNothingStampsTheStatusAlone) {
  const NodeId node = put("f", "x");
  const Attributes before = store_.status(node).info.attributes;
  ASSERT_TRUE(store_.fs().change_status(node, {}));
  const Attributes after = store_.status(node).info.attributes;
  EXPECT_GT(after.ctime_ns, before.ctime_ns);
  EXPECT_EQ(after.mtime_ns, before.mtime_ns);
}

TEST_F(FilesystemTest, AWriteByOthersTakesSuidAndSgidAway) {
  const NodeId node = put("f", "x");
  StatusChange change;
  change.attributes.mode = 06755;
  ASSERT_TRUE(store_.fs().change_status(node, change));
  Handle handle = store_.open(node);
  EXPECT_TRUE(store_.write(handle, 0, "y"));
  EXPECT_EQ(store_.status(node).info.attributes.mode, 06755U);
  store_.fs().write(*handle, 0, bytes_of("z"), {.clears_privileges = true}, [](Result<void>) {});
  EXPECT_EQ(store_.status(node).info.attributes.mode, 0755U);
}

TEST_F(FilesystemTest, ExtendedAttributesAreOfUsersOnly) {
  const NodeId node = put("f", "x");
  Filesystem& fs = store_.fs();
  EXPECT_TRUE(fs.set_xattr(node, "user.a", "1", Volume::XattrMode::kAny));
  EXPECT_EQ(*fs.xattr(node, "user.a"), "1");
  EXPECT_EQ(errno_of(fs.set_xattr(node, "security.x", "1", Volume::XattrMode::kAny)), EOPNOTSUPP);
  EXPECT_EQ(errno_of(fs.set_xattr(node, "user.a", "2", Volume::XattrMode::kCreate)), EEXIST);
  EXPECT_EQ(errno_of(fs.set_xattr(node, "user.b", "2", Volume::XattrMode::kReplace)), ENODATA);
  EXPECT_EQ(errno_of(fs.set_xattr(node, "user.kvslot.x", "2", Volume::XattrMode::kAny)), EPERM);
  EXPECT_EQ(errno_of(fs.set_xattr(node, "user.", "2", Volume::XattrMode::kAny)), EINVAL);
  EXPECT_EQ(errno_of(fs.remove_xattr(node, "user.")), EINVAL);
  EXPECT_EQ(to_errno(fs.xattr(node, "user.").error()), EINVAL);
  EXPECT_EQ(to_errno(fs.xattr(node, "security.capability").error()), ENODATA);
  EXPECT_FALSE(fs.xattr(node, "user.kvslot.slots")->empty());
  EXPECT_EQ(fs.xattr(node, "user.kvslot.checksum")->size(), 16U);
  EXPECT_EQ(store_.volume().list_xattrs(node)->size(), 1U);
}

}  // namespace
}  // namespace kvslot::testing
