// What does not fit: who is told of it, and when the value that was to be replaced stays.
#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <utility>

#include "tests/fs/filesystem_fixture.h"

namespace kvslot::testing {
namespace {

class IncompleteWriteTest : public FilesystemTest {};

// A file that takes whole MiBs until there is no room for another.
Handle fill_up(LiveStore& store) {
  Handle big = store.create("big");
  const std::string filler(kMiB, 'x');
  for (std::uint64_t at = 0; store.write(big, at, filler);) at += filler.size();
  return big;
}

TEST_F(IncompleteWriteTest, ARewriteThatDidNotFitCanBeMadeGood) {
  const std::string filler(kMiB, 'x');
  put("f", "old");
  const Handle big = fill_up(store_);
  Handle handle = store_.open("f", {.writes = true, .truncates = true});
  EXPECT_EQ(errno_of(store_.write(handle, 0, filler)), ENOSPC);
  EXPECT_EQ(errno_of(store_.fsync(handle)), ENOSPC);
  EXPECT_EQ(errno_of(store_.flush(handle)), ENOSPC);
  ASSERT_TRUE(store_.truncate(big->file->node, 0));
  EXPECT_TRUE(store_.write(handle, 0, filler));
  EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_EQ(store_.content("f"), filler);
}

TEST_F(IncompleteWriteTest, ACloseSaysThatAWriteDidNotFit) {
  const std::string filler(kMiB, 'x');
  const Handle big = fill_up(store_);
  Handle handle = store_.create("new");
  EXPECT_EQ(errno_of(store_.write(handle, 0, filler)), ENOSPC);
  EXPECT_TRUE(store_.fsync(handle)) << "what there is of it is durable";
  EXPECT_EQ(errno_of(store_.flush(handle)), ENOSPC);
  ASSERT_TRUE(store_.truncate(handle->file->node, 0));
  EXPECT_TRUE(store_.flush(handle)) << "the writer knows of it";
  EXPECT_EQ(errno_of(store_.write(handle, 0, filler)), ENOSPC);
  ASSERT_TRUE(store_.truncate(big->file->node, 0));
  EXPECT_TRUE(store_.write(handle, 0, filler));
  EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_EQ(store_.content("new"), filler);
}

TEST_F(IncompleteWriteTest, ACloseSaysOfItsOwnWritesOnlyThatTheyDidNotFit) {
  put("f", "old");
  const Handle big = fill_up(store_);
  Handle handle = store_.open("f");
  Handle other = store_.open("f");
  EXPECT_EQ(errno_of(store_.write(handle, 3, std::string(kMiB, 'x'))), ENOSPC);
  EXPECT_TRUE(store_.close(std::move(other)));
  EXPECT_EQ(errno_of(store_.close(std::move(handle))), ENOSPC);
  EXPECT_EQ(store_.content("f"), "old");
  Handle removed = store_.create("removed");
  EXPECT_EQ(errno_of(store_.write(removed, 0, std::string(kMiB, 'x'))), ENOSPC);
  EXPECT_TRUE(store_.unlink("removed"));
  EXPECT_TRUE(store_.close(std::move(removed)));
}

TEST_F(IncompleteWriteTest, ARewriteThatBeganWithFtruncateAndDidNotFitKeepsTheOldValue) {
  put("f", "old");
  const Handle big = fill_up(store_);
  Handle handle = store_.open("f", {.writes = true});
  ASSERT_TRUE(store_.truncate(handle, 0));
  EXPECT_EQ(errno_of(store_.write(handle, 0, std::string(kMiB, 'x'))), ENOSPC);
  EXPECT_EQ(errno_of(store_.close(std::move(handle))), ENOSPC);
  EXPECT_EQ(store_.content("f"), "old");
}

// A log that an administrator empties while its writer finds the store full.
TEST_F(IncompleteWriteTest, WhatIsEmptiedByItsPathStaysSoThoughItsWriterFails) {
  const NodeId node = put("log", std::string(kMiB, 'l'));
  const Handle big = fill_up(store_);
  Handle writer = store_.open("log", {.writes = true});
  ASSERT_TRUE(store_.truncate(node, 0));
  EXPECT_EQ(errno_of(store_.write(writer, 0, std::string(2 * kMiB, 'x'))), ENOSPC);
  EXPECT_TRUE(store_.sync());
  EXPECT_TRUE(store_.write(writer, 0, std::string(kMiB / 2, 'y'))) << "no space came back";
  (void)store_.close(std::move(writer));
  EXPECT_EQ(store_.content("log"), std::string(kMiB / 2, 'y'));
}

TEST_F(IncompleteWriteTest, ASynchronousWriteDoesNotStoreARewriteThatDidNotFit) {
  put("f", "old");
  const Handle big = fill_up(store_);
  Handle handle = store_.open("f", {.writes = true, .truncates = true});
  EXPECT_EQ(errno_of(store_.write(handle, 4096, std::string(kMiB, 'x'))), ENOSPC);
  EXPECT_EQ(errno_of(store_.write_durably(handle, 0, "begun")), ENOSPC);
  EXPECT_EQ(errno_of(store_.close(std::move(handle))), ENOSPC);
  EXPECT_EQ(store_.content("f"), "old");
}

TEST_F(IncompleteWriteTest, ARewriteOfWhichSeveralPartsDidNotFitNeedsAllOfThem) {
  const std::string filler(kMiB, 'x');
  put("f", "old");
  const Handle big = fill_up(store_);
  Handle handle = store_.open("f", {.writes = true, .truncates = true});
  EXPECT_EQ(errno_of(store_.write(handle, 0, filler)), ENOSPC);
  EXPECT_EQ(errno_of(store_.write(handle, 2 * kMiB, filler)), ENOSPC);
  ASSERT_TRUE(store_.truncate(big->file->node, 0));
  EXPECT_TRUE(store_.write(handle, 2 * kMiB, filler));
  EXPECT_EQ(errno_of(store_.flush(handle)), ENOSPC);
  EXPECT_TRUE(store_.write(handle, 0, filler));
  EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_EQ(store_.content("f"), filler + std::string(kMiB, '\0') + filler);
}

TEST_F(IncompleteWriteTest, WhatAnotherEmptiesIsNotMissingToItsWriter) {
  const Handle big = fill_up(store_);
  Handle handle = store_.create("f");
  EXPECT_EQ(errno_of(store_.write(handle, 0, std::string(kMiB, 'x'))), ENOSPC);
  const Handle other = store_.open("f", {.writes = true, .truncates = true});
  EXPECT_TRUE(store_.flush(handle));
}

TEST_F(IncompleteWriteTest, ARewriteThatDidNotFitIsNotStoredByARename) {
  const std::string filler(kMiB, 'x');
  put("f", "old");
  const Handle big = fill_up(store_);
  Handle handle = store_.open("f", {.writes = true, .truncates = true});
  EXPECT_TRUE(store_.write(handle, 0, "begun"));
  EXPECT_EQ(errno_of(store_.write(handle, 5, filler)), ENOSPC);
  EXPECT_TRUE(store_.rename("f", "g"));
  EXPECT_EQ(errno_of(store_.close(std::move(handle))), ENOSPC);
  EXPECT_EQ(store_.content("g"), "old");
  store_.crash();
  EXPECT_FALSE(store_.exists("g") && store_.content("g") != "old");
}

}  // namespace
}  // namespace kvslot::testing
