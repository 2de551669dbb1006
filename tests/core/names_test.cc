// Names through a Volume: what rename, remove and create promise, also after a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <cerrno>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/put_changes.h"
#include "tests/support/engine.h"

namespace kvslot::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class NamesTest : public ::testing::Test {
 protected:
  Volume& volume() { return harness_.volume(); }

  void put(std::string_view key, std::string_view value) {
    const auto stored = put_key(volume(), key, value);
    EXPECT_TRUE(stored) << stored.error().step;
  }
  std::string get(std::string_view key) {
    const auto value = read_key(volume(), key);
    return value ? *value : std::string("<") + to_string(value.error().code) + ">";
  }
  NodeId make_directory(NodeId parent, std::string_view name) {
    const auto made = volume().create(parent, name, NodeKind::kDirectory, {.mode = 0755});
    EXPECT_TRUE(made);
    return made ? made->node : NodeId::kNone;
  }
  NodeId create(NodeId parent, std::string_view name) {
    const auto made = volume().create(parent, name, NodeKind::kFile, {});
    EXPECT_TRUE(made);
    return made ? made->node : NodeId::kNone;
  }
  // Names in the root, renamed; the errno or 0.
  int rename(std::string_view from, std::string_view to, RenameMode mode = RenameMode::kReplace) {
    const auto renamed = volume().rename(NodeId::kRoot, from, NodeId::kRoot, to, mode);
    return renamed ? 0 : to_errno(renamed.error());
  }
  int remove(std::string_view name, RemoveKind kind = RemoveKind::kNotDirectory) {
    const auto removed = volume().remove(NodeId::kRoot, name, kind);
    return removed ? 0 : to_errno(removed.error());
  }
  Result<void> commit(NodeId node, std::string_view value) {
    ContentChange change = change_for_put(volume(), {}, bytes_of(value));
    change.node = node;
    volume().commit({&change, 1});
    return change.result;
  }
  std::vector<std::string> names(std::size_t together = 1024) {
    std::vector<std::string> all;
    std::uint64_t cookie = 0;
    while (true) {
      const auto some = volume().list(NodeId::kRoot, cookie, together);
      EXPECT_TRUE(some);
      if (!some || some->empty()) return all;
      for (const DirectoryEntry& entry : *some) {
        EXPECT_GT(entry.cookie, cookie) << "cookies increase";
        cookie = entry.cookie;
        all.push_back(entry.name);
      }
    }
  }
  // Whatever was recorded is durable, and then the power fails.
  void flush_and_crash() {
    EXPECT_TRUE(volume().flush());
    harness_.crash();
  }

  StoreHarness harness_;
};

TEST_F(NamesTest, RenameReplacesAFileAndItsOldValueIsGone) {
  put("a", "1");
  put("b", "2");
  EXPECT_EQ(rename("a", "b"), 0);
  EXPECT_EQ(get("b"), "1");
  flush_and_crash();
  EXPECT_THAT(names(), ElementsAre("b"));
  EXPECT_EQ(get("b"), "1");
  expect_slots_accounted(volume());
}

TEST_F(NamesTest, NoReplaceRefusesATakenName) {
  put("a", "1");
  put("b", "2");
  EXPECT_EQ(rename("a", "b", RenameMode::kNoReplace), EEXIST);
  EXPECT_EQ(rename("a", "c", RenameMode::kNoReplace), 0);
  EXPECT_EQ(get("c"), "1");
  EXPECT_EQ(get("b"), "2");
}

TEST_F(NamesTest, ExchangeSwapsFilesWithDirectoriesAndSurvives) {
  put("file", "f");
  put("folder/inside", "i");
  EXPECT_EQ(rename("file", "missing", RenameMode::kExchange), ENOENT);
  EXPECT_EQ(rename("file", "folder", RenameMode::kExchange), 0);
  flush_and_crash();
  EXPECT_EQ(get("folder"), "f");
  EXPECT_EQ(get("file/inside"), "i");
}

TEST_F(NamesTest, ADirectoryCannotMoveIntoItself) {
  const NodeId top = make_directory(NodeId::kRoot, "top");
  const NodeId below = make_directory(top, "below");
  for (const RenameMode mode : {RenameMode::kReplace, RenameMode::kNoReplace}) {
    const auto renamed = volume().rename(NodeId::kRoot, "top", below, "x", mode);
    ASSERT_FALSE(renamed);
    EXPECT_EQ(to_errno(renamed.error()), EINVAL);
  }
  const auto exchanged = volume().rename(NodeId::kRoot, "top", top, "below", RenameMode::kExchange);
  ASSERT_FALSE(exchanged);
  EXPECT_EQ(to_errno(exchanged.error()), EINVAL);
}

TEST_F(NamesTest, RenameOverADirectoryNeedsAnEmptyDirectory) {
  put("full/x", "1");
  make_directory(NodeId::kRoot, "empty");
  make_directory(NodeId::kRoot, "source");
  put("file", "1");
  EXPECT_EQ(rename("source", "full"), ENOTEMPTY);
  EXPECT_EQ(rename("file", "empty"), EISDIR);
  EXPECT_EQ(rename("source", "file"), ENOTDIR);
  EXPECT_EQ(rename("source", "empty"), 0);
  EXPECT_THAT(names(), UnorderedElementsAre("full", "empty", "file"));
}

TEST_F(NamesTest, RenameToTheSameNameChangesNothing) {
  put("a", "1");
  EXPECT_EQ(rename("a", "a"), 0);
  EXPECT_EQ(get("a"), "1");
}

TEST_F(NamesTest, ADirectoryMovesWithAllBelowByOneRecord) {
  put("d/e/f", "deep");
  EXPECT_EQ(rename("d", "moved"), 0);
  flush_and_crash();
  EXPECT_EQ(get("moved/e/f"), "deep");
  EXPECT_THAT(names(), ElementsAre("moved"));
}

TEST_F(NamesTest, RemoveTellsFilesFromDirectories) {
  put("file", "1");
  put("full/x", "1");
  make_directory(NodeId::kRoot, "empty");
  EXPECT_EQ(remove("file", RemoveKind::kDirectory), ENOTDIR);
  EXPECT_EQ(remove("empty"), EISDIR);
  EXPECT_EQ(remove("full", RemoveKind::kDirectory), ENOTEMPTY);
  EXPECT_EQ(remove("missing"), ENOENT);
  EXPECT_EQ(remove("empty", RemoveKind::kDirectory), 0);
  EXPECT_EQ(remove("file"), 0);
  EXPECT_THAT(names(), ElementsAre("full"));
}

TEST_F(NamesTest, NothingCanBeMadeInARemovedDirectory) {
  const NodeId directory = make_directory(NodeId::kRoot, "d");
  volume().hold(directory);
  EXPECT_EQ(remove("d", RemoveKind::kDirectory), 0);
  EXPECT_FALSE(volume().create(directory, "x", NodeKind::kFile, {}));
  volume().release(directory);
}

TEST_F(NamesTest, AnUnlinkedFileStaysReadableWhileItIsHeld) {
  put("a", "still here");
  const auto node = volume().lookup(NodeId::kRoot, "a", true);
  ASSERT_TRUE(node);
  EXPECT_EQ(remove("a"), 0);
  EXPECT_TRUE(volume().flush());
  put("b", std::string(100'000, 'b'));
  const auto view = volume().read(node->node, 0, 100);
  ASSERT_TRUE(view);
  EXPECT_EQ(text_of(*view), "still here");
  expect_slots_accounted(volume());
  const std::uint64_t live = harness_.stat("slots_live");
  volume().release(node->node);
  EXPECT_TRUE(volume().flush());
  EXPECT_EQ(harness_.stat("slots_live"), live - 1);
  EXPECT_EQ(harness_.stat("slots_doomed"), 0U);
}

// --- Shadows: a file without content over a stored one.

TEST_F(NamesTest, ACrashBeforeTheFirstCommitOfARenamedFileLeavesTheOldValue) {
  put("a", "old");
  create(NodeId::kRoot, "new");
  EXPECT_EQ(rename("new", "a"), 0);
  EXPECT_TRUE(volume().checkpoint());
  flush_and_crash();
  EXPECT_EQ(get("a"), "old");
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(NamesTest, TheFirstCommitOfARenamedFileReplacesTheOldValue) {
  put("a", "old");
  const NodeId node = create(NodeId::kRoot, "new");
  EXPECT_EQ(rename("new", "a"), 0);
  EXPECT_TRUE(commit(node, "new value"));
  flush_and_crash();
  EXPECT_EQ(get("a"), "new value");
  EXPECT_THAT(names(), ElementsAre("a"));
  expect_slots_accounted(volume());
}

TEST_F(NamesTest, RemovingAFileThatHidesAStoredOneRemovesBoth) {
  put("a", "old");
  create(NodeId::kRoot, "new");
  EXPECT_EQ(rename("new", "a"), 0);
  EXPECT_EQ(remove("a"), 0);
  flush_and_crash();
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(NamesTest, OneUncommittedFileOverAnotherStillKeepsTheOldValue) {
  put("a", "old");
  create(NodeId::kRoot, "first");
  create(NodeId::kRoot, "second");
  EXPECT_EQ(rename("first", "a"), 0);
  EXPECT_EQ(rename("second", "a"), 0);
  flush_and_crash();
  EXPECT_EQ(get("a"), "old");
}

TEST_F(NamesTest, AHiddenFileIsGoneOnceItsHiderMovesOn) {
  put("a", "old");
  const NodeId node = create(NodeId::kRoot, "new");
  EXPECT_EQ(rename("new", "a"), 0);
  EXPECT_EQ(rename("a", "b"), 0);
  EXPECT_TRUE(commit(node, "value"));
  flush_and_crash();
  EXPECT_THAT(names(), ElementsAre("b"));
  EXPECT_EQ(get("b"), "value");
}

// What hides `name` when the first commit of the file there fails, which it was hidden during.
class FailedFirstCommit : public NamesTest {
 protected:
  NodeId hide_during_commit(NodeId node, std::string_view name) {
    const NodeId hider = create(NodeId::kRoot, "hider");
    harness_.device().hold(OperationKind::kWrite);
    Result<void> committed;
    std::thread committer([&] { committed = commit(node, "never stored"); });
    harness_.device().wait_until_held(1);
    EXPECT_EQ(rename("hider", name), 0);
    harness_.device().add_fault({.kind = OperationKind::kWrite, .error = ENOSPC});
    harness_.device().release();
    committer.join();
    harness_.device().clear_faults();
    EXPECT_FALSE(committed);
    EXPECT_FALSE(volume().is_read_only());
    return hider;
  }
};

TEST_F(FailedFirstCommit, LeavesTheOldValueUntilTheHiderIsCommitted) {
  put("a", "old");
  const NodeId node = create(NodeId::kRoot, "new");
  EXPECT_EQ(rename("new", "a"), 0);
  hide_during_commit(node, "a");
  expect_slots_accounted(volume());
  flush_and_crash();
  EXPECT_EQ(get("a"), "old");
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(FailedFirstCommit, LetsTheHiderReplaceTheOldValue) {
  put("a", "old");
  const NodeId node = create(NodeId::kRoot, "new");
  EXPECT_EQ(rename("new", "a"), 0);
  const NodeId hider = hide_during_commit(node, "a");
  EXPECT_TRUE(commit(hider, "hider's"));
  flush_and_crash();
  EXPECT_EQ(get("a"), "hider's");
  EXPECT_THAT(names(), ElementsAre("a"));
  expect_slots_accounted(volume());
}

TEST_F(FailedFirstCommit, LeavesNothingWhereNothingWasStored) {
  const NodeId node = create(NodeId::kRoot, "a");
  const NodeId hider = hide_during_commit(node, "a");
  expect_slots_accounted(volume());
  EXPECT_TRUE(commit(hider, "hider's"));
  EXPECT_EQ(remove("a"), 0);
  flush_and_crash();
  EXPECT_THAT(names(), IsEmpty());
  EXPECT_EQ(harness_.stat("slots_live"), 0U);
}

// --- What is no name, or not that kind of node.

TEST_F(NamesTest, WhatCannotBeIsRefusedAndMakesNothing) {
  const auto error_of = [](const auto& result) { return result ? 0 : to_errno(result.error()); };
  const NodeId file = create(NodeId::kRoot, "file");
  const std::string longest(kNameSizeBytesMax, 'n');
  for (const auto& [name, error] :
       std::vector<std::pair<std::string, int>>{{"", EINVAL},
                                                {".", EINVAL},
                                                {"..", EINVAL},
                                                {"a/b", EINVAL},
                                                {std::string(1, 0), EINVAL},
                                                {longest + "n", ENAMETOOLONG}}) {
    EXPECT_EQ(error_of(volume().create(NodeId::kRoot, name, NodeKind::kFile, {})), error) << name;
    EXPECT_EQ(rename("file", name), error) << name;
  }
  EXPECT_EQ(error_of(volume().lookup(NodeId::kRoot, longest + "n")), ENAMETOOLONG);
  const auto link = [&](std::string_view target) {
    return error_of(volume().create(NodeId::kRoot, "link", NodeKind::kSymlink, {}, target));
  };
  EXPECT_EQ(link(""), ENAMETOOLONG);
  EXPECT_EQ(link(std::string(kSymlinkSizeBytesMax + 1, 't')), ENAMETOOLONG);
  EXPECT_EQ(error_of(volume().create(file, "below", NodeKind::kFile, {})), ENOTDIR);
  EXPECT_EQ(error_of(volume().list(file, 0, 10)), ENOTDIR);
  EXPECT_EQ(error_of(volume().symlink_target(file)), EINVAL);
  EXPECT_EQ(error_of(volume().read(NodeId::kRoot, 0, 10)), EISDIR);
  EXPECT_THAT(names(), ElementsAre("file"));
  EXPECT_EQ(link(std::string(kSymlinkSizeBytesMax, 't')), 0);
}

// --- Listing.

TEST_F(NamesTest, FilesThatWereExchangedAndMovedApartKeepPlacesOfTheirOwn) {
  put("a", "1");
  put("b", "2");
  EXPECT_EQ(rename("a", "b", RenameMode::kExchange), 0);
  EXPECT_EQ(rename("b", "c"), 0);  // was "a" when it was made
  EXPECT_THAT(names(1), UnorderedElementsAre("a", "c"));
  flush_and_crash();
  put("d", "4");
  EXPECT_THAT(names(1), UnorderedElementsAre("a", "c", "d"));
  for (const char* name : {"a", "c", "d"}) EXPECT_EQ(remove(name), 0) << name;
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(NamesTest, ANameReplacedDuringAListingAppearsExactlyOnce) {
  for (int i = 0; i < 10; ++i) put("n" + std::to_string(i), "x");
  put("other", "y");
  const auto front = volume().list(NodeId::kRoot, 0, 5);
  ASSERT_TRUE(front);
  EXPECT_EQ(rename("other", "n2"), 0);  // listed already
  put("another", "z");
  EXPECT_EQ(rename("another", "n7"), 0);                    // still to come
  EXPECT_EQ(rename("n3", "n8", RenameMode::kExchange), 0);  // one of each
  std::vector<std::string> seen;
  for (const DirectoryEntry& entry : *front) seen.push_back(entry.name);
  const auto rest = volume().list(NodeId::kRoot, front->back().cookie, 100);
  ASSERT_TRUE(rest);
  for (const DirectoryEntry& entry : *rest) seen.push_back(entry.name);
  EXPECT_THAT(seen,
              UnorderedElementsAre("n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"));
}

}  // namespace
}  // namespace kvslot::testing
