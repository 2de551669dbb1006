// Extended attributes: modes, limits, and that they stay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <cerrno>
#include <string>

#include "tests/support/engine.h"

namespace kvslot::testing {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Mode = Volume::XattrMode;

class XattrsTest : public ::testing::Test {
 protected:
  XattrsTest() {
    EXPECT_TRUE(put_key(volume(), "key", "value"));
    EXPECT_TRUE(volume().create(NodeId::kRoot, "folder", NodeKind::kDirectory, {}));
  }
  Volume& volume() { return harness_.volume(); }
  NodeId node(std::string_view key) { return volume().find(key)->node; }
  int set(std::string_view name, std::string_view value, Mode mode = Mode::kAny) {
    const auto done = volume().set_xattr(node("key"), name, value, mode);
    return done ? 0 : to_errno(done.error());
  }
  std::string get(std::string_view name) {
    const auto value = volume().xattr(node("key"), name);
    return value ? *value : "<" + std::to_string(to_errno(value.error())) + ">";
  }

  StoreHarness harness_{16 * kMiB};
};

TEST_F(XattrsTest, ModesTellFirstFromLater) {
  EXPECT_EQ(set("user.a", "1", Mode::kReplace), ENODATA);
  EXPECT_EQ(set("user.a", "1", Mode::kCreate), 0);
  EXPECT_EQ(set("user.a", "2", Mode::kCreate), EEXIST);
  EXPECT_EQ(set("user.a", "3", Mode::kReplace), 0);
  EXPECT_EQ(get("user.a"), "3");
  EXPECT_EQ(set("user.a", ""), 0);
  EXPECT_EQ(get("user.a"), "");
  EXPECT_EQ(get("user.b"), "<" + std::to_string(ENODATA) + ">");
  EXPECT_TRUE(volume().remove_xattr(node("key"), "user.a"));
  EXPECT_EQ(to_errno(volume().remove_xattr(node("key"), "user.a").error()), ENODATA);
  EXPECT_THAT(*volume().list_xattrs(node("key")), IsEmpty());
}

TEST_F(XattrsTest, NamesAndSizesHaveLimits) {
  EXPECT_EQ(set("", "1"), ERANGE);
  EXPECT_EQ(set(std::string(256, 'n'), "1"), ERANGE);
  EXPECT_EQ(set(std::string(255, 'n'), "1"), 0);
  EXPECT_EQ(set("user.big", std::string(kXattrSizeBytesMax, 'b')), ENOSPC);
  EXPECT_EQ(set("user.big", std::string(60'000, 'b')), 0);
  EXPECT_EQ(set("user.more", std::string(6'000, 'm')), ENOSPC) << "all together count";
  EXPECT_EQ(get("user.big").size(), 60'000U);
}

TEST_F(XattrsTest, TheyStayThroughJournalCheckpointRenameAndReplacement) {
  EXPECT_EQ(set("user.a", "1"), 0);
  EXPECT_EQ(set("user.b", std::string(3000, 'b')), 0);
  ASSERT_TRUE(volume().set_xattr(node("folder"), "user.of", "directory", Mode::kAny));
  ASSERT_TRUE(volume().set_xattr(NodeId::kRoot, "user.of", "root", Mode::kAny));
  ASSERT_TRUE(volume().flush());
  const auto expect_all = [&](std::string_view key) {
    EXPECT_EQ(volume().xattr(node(key), "user.a"), "1");
    EXPECT_THAT(*volume().list_xattrs(node(key)), UnorderedElementsAre("user.a", "user.b"));
    EXPECT_EQ(volume().xattr(node("folder"), "user.of"), "directory");
    EXPECT_EQ(volume().xattr(NodeId::kRoot, "user.of"), "root");
  };
  harness_.crash();
  expect_all("key");
  ASSERT_TRUE(put_key(volume(), "key", "another value"));
  ASSERT_TRUE(volume().rename(NodeId::kRoot, "key", NodeId::kRoot, "moved", RenameMode::kReplace));
  harness_.reopen();
  expect_all("moved");
  ASSERT_TRUE(volume().remove_xattr(node("moved"), "user.a"));
  ASSERT_TRUE(volume().flush());
  harness_.crash();
  EXPECT_THAT(*volume().list_xattrs(node("moved")), UnorderedElementsAre("user.b"));
}

TEST_F(XattrsTest, ThoseOfAFileNotYetCommittedArriveWithItsFirstCommit) {
  const auto made = volume().create(NodeId::kRoot, "new", NodeKind::kFile, {});
  ASSERT_TRUE(made);
  ASSERT_TRUE(volume().set_xattr(made->node, "user.early", "1", Mode::kAny));
  ContentChange change;
  change.node = made->node;
  change.whole = true;
  volume().commit({&change, 1});
  ASSERT_TRUE(change.result);
  ASSERT_TRUE(volume().flush());
  harness_.crash();
  EXPECT_EQ(volume().xattr(node("new"), "user.early"), "1");
}

}  // namespace
}  // namespace kvslot::testing
