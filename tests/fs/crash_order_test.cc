// What a crash may leave of names and contents that change together, and who waits for slots that
// are on their way back.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "tests/fs/filesystem_fixture.h"

namespace kvslot::testing {
namespace {

class CrashOrder : public ::testing::Test {
 protected:
  void put(std::string_view name, std::string_view text) {
    Handle handle = store_.exists(name) ? store_.open(name) : store_.create(name);
    EXPECT_TRUE(store_.write(handle, 0, text));
    EXPECT_TRUE(store_.fsync(handle));
    EXPECT_TRUE(store_.close(std::move(handle)));
  }
  // Whatever is recorded by now becomes durable; what is written to files and not committed is
  // lost.
  void crash_after_flush() {
    EXPECT_TRUE(store_.volume().flush());
    store_.crash();
  }

  LiveStore store_;
};

TEST_F(CrashOrder, ARenameDoesNotComeBeforeWhatTheFileHolds) {
  put("target", "the target");
  put("new", "an older value");
  const Handle handle = store_.open("new", {.writes = true, .truncates = true});
  ASSERT_TRUE(store_.write(handle, 0, "the new value"));
  ASSERT_TRUE(store_.rename("new", "target"));
  crash_after_flush();
  EXPECT_FALSE(store_.exists("new"));
  EXPECT_EQ(store_.content("target"), "the new value");
}

TEST_F(CrashOrder, AnExchangeWithAFileThatWasNeverCommittedLosesNeither) {
  put("target", "the target");
  const Handle handle = store_.create("new");
  ASSERT_TRUE(store_.write(handle, 0, "the new value"));
  ASSERT_TRUE(store_.rename("new", "target", RenameMode::kExchange));
  crash_after_flush();
  EXPECT_EQ(store_.content("new"), "the target");
  EXPECT_EQ(store_.content("target"), "the new value");
}

TEST_F(CrashOrder, AFileThatTookANameAndMovesOnLeavesNoHole) {
  put("target", "the target");
  const Handle handle = store_.create("new");
  ASSERT_TRUE(store_.write(handle, 0, "the new value"));
  ASSERT_TRUE(store_.rename("new", "target"));
  ASSERT_TRUE(store_.rename("target", "backup"));
  crash_after_flush();
  EXPECT_FALSE(store_.exists("target"));
  EXPECT_EQ(store_.content("backup"), "the new value");
}

TEST_F(CrashOrder, ARenameOfAFileThatCannotBeStoredFailsAndChangesNothing) {
  put("target", "the target");
  put("new", "an older value");
  const Handle handle = store_.open("new");
  ASSERT_TRUE(store_.write(handle, 0, "the new value!"));
  store_.device().set_thin_budget(0);
  EXPECT_FALSE(store_.rename("new", "target"));
  store_.device().set_thin_budget(std::nullopt);
  EXPECT_EQ(store_.content("target"), "the target");
  EXPECT_EQ(store_.content(handle), "the new value!");
}

TEST_F(CrashOrder, WithSyncNamesAndEmptyNewFilesAreDurableWhenAnswered) {
  store_.options().sync = true;
  ASSERT_TRUE(store_.close(store_.create("empty")));
  store_.crash();
  ASSERT_TRUE(store_.exists("empty"));

  ASSERT_TRUE(store_.fs().make(NodeId::kRoot, "directory", NodeKind::kDirectory, 0755, {}));
  ASSERT_TRUE(store_.settle_names());
  store_.crash();
  ASSERT_TRUE(store_.exists("directory"));

  ASSERT_TRUE(store_.unlink("empty"));
  ASSERT_TRUE(store_.settle_names());
  store_.crash();
  ASSERT_FALSE(store_.exists("empty"));

  const Handle handle = store_.create("new");
  ASSERT_TRUE(store_.write(handle, 0, "the value"));
  ASSERT_TRUE(store_.rename("new", "named"));  // what it holds by then comes with it
  store_.crash();
  EXPECT_EQ(store_.content("named"), "the value");
}

// A store of 16 MiB: three fifths taken by a value and its successor under way, and a write that
// fits only when the first of them is gone.
TEST(SlotsOnTheirWay, AWriteWaitsForTheSlotsOfAValueThatIsBeingReplaced) {
  LiveStore store(16 * kMiB);
  const std::uint64_t free_bytes = store.free_blocks() * kBlockSizeBytes;
  const std::string large(free_bytes * 2 / 5, 'a');
  Handle handle = store.create("large");
  ASSERT_TRUE(store.write(handle, 0, large));
  ASSERT_TRUE(store.fsync(handle));
  ASSERT_TRUE(store.write(handle, 0, std::string(large.size(), 'b')));
  store.device().hold(OperationKind::kWrite);
  auto replaced = store.begin_fsync(handle);
  store.device().wait_until_held(1);
  const Handle other = store.create("other");
  auto written = store.begin_write(other, 0, std::string(free_bytes * 3 / 10, 'c'));
  EXPECT_EQ(written.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  store.device().release();
  EXPECT_TRUE(written.get());
  EXPECT_TRUE(replaced.get());
  EXPECT_TRUE(store.fsync(other));
  // With nothing under way, a store that is full says so at once.
  EXPECT_EQ(store.begin_write(other, free_bytes, large).get().error().code, Errc::kNoSpace);
}

}  // namespace
}  // namespace kvslot::testing
