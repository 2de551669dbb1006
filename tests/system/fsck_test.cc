// fsck as a user meets it: what it prints, what it mends, and what it returns.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/attached_image.h"
#include "tests/support/command.h"
#include "tests/support/damage.h"
#include "tests/support/mounted_store.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::CommandResult;
using testing::expect_ok;
using testing::expect_refused;
using testing::fingerprint;
using testing::run_kvslot;

class FsckTest : public ::testing::Test {
 protected:
  FsckTest() : path_(directory_.path("store.img")) {
    expect_ok(run_kvslot({"format", path_, "--size", "16M"}));
    expect_ok(run_kvslot({"put", path_, "dir/key"}, "value"));
  }
  void garble_copy(std::uint64_t offset_bytes) {
    testing::overwrite(path_, offset_bytes + 100, "garbled");
  }

  testing::TempDir directory_;
  std::string path_;
};

bool says(const CommandResult& result, const std::string& part) {
  return result.out.find(part) != std::string::npos;
}

TEST_F(FsckTest, HelpNamesEveryExitCode) {
  const CommandResult help = run_kvslot({"fsck", "--help"});
  for (const char* part : {"0 clean", "1 errors corrected", "4 errors left", "8 could", "16 wrong"})
    EXPECT_TRUE(says(help, part)) << help.out;
  expect_refused(run_kvslot({"fsck", path_, "-n", "--repair"}), 16, "--help");
}

TEST_F(FsckTest, ARepairIsReportedAndDoneOnce) {
  garble_copy(0);
  const CommandResult checked = run_kvslot({"fsck", path_});
  EXPECT_EQ(checked.exit_code, 4);
  EXPECT_TRUE(says(checked, "'kvslot fsck --repair' mends it")) << checked.out;
  const CommandResult repaired = run_kvslot({"fsck", "--repair", path_});
  EXPECT_EQ(repaired.exit_code, 1);
  EXPECT_TRUE(says(repaired, "repair: wrote")) << repaired.out;
  const std::uint64_t before = fingerprint(path_);
  const CommandResult again = run_kvslot({"fsck", "--repair", path_});
  expect_ok(again);
  EXPECT_EQ(std::ranges::count(again.out, '\n'), 1) << again.out;
  EXPECT_EQ(fingerprint(path_), before);
  EXPECT_EQ(run_kvslot({"get", path_, "dir/key"}).out, "value");
}

TEST_F(FsckTest, WhatIsLeftIsSaid) {
  expect_ok(run_kvslot({"put", path_, "big"}, std::string(5000, 'b')));
  const CommandResult found =
      testing::run_shell("grep -abo bbbbbbbb \"$1\" | head -1 | cut -d: -f1", {path_});
  testing::overwrite(path_, std::stoull(found.out) + 10, "X");
  const std::uint64_t before = fingerprint(path_);
  const CommandResult left = run_kvslot({"fsck", "--repair", path_});
  EXPECT_EQ(left.exit_code, 4);
  EXPECT_TRUE(says(left, "would need a guess")) << left.out;
  EXPECT_TRUE(says(left, "--salvage")) << left.out;
  EXPECT_EQ(fingerprint(path_), before);
  garble_copy(65536);
  EXPECT_EQ(run_kvslot({"fsck", "--repair", path_}).exit_code, 5);
  EXPECT_EQ(run_kvslot({"get", path_, "dir/key"}).out, "value");
}

TEST_F(FsckTest, AStoreThatIsOpenElsewhereIsNotRepaired) {
  garble_copy(0);
  const std::uint64_t before = fingerprint(path_);
  const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  expect_refused(run_kvslot({"fsck", "--repair", path_}), 8, path_);
  ::close(fd);
  EXPECT_EQ(fingerprint(path_), before);
}

TEST_F(FsckTest, ABlockDeviceIsRepairedToo) {
  const testing::AttachedImage loop(path_);
  if (loop.path().empty()) GTEST_SKIP() << "no loop device here";
  garble_copy(65536);
  const CommandResult repaired = run_kvslot({"fsck", "--repair", loop.path()});
  EXPECT_EQ(repaired.exit_code, 1) << repaired.out << repaired.err;
  expect_ok(run_kvslot({"fsck", loop.path()}));
}

TEST(FsckAfterKill, APlainKillLeavesOneLineOfRemarks) {
  if (const std::string why = testing::why_no_mount(); !why.empty()) GTEST_SKIP() << why;
  testing::TempDir directory;
  const std::string image = directory.path("store.img");
  expect_ok(run_kvslot({"format", image, "--size", "64M"}));
  const testing::MountGuard guard(directory.path("mnt"));
  expect_ok(run_kvslot({"mount", image, guard.path()}));
  expect_ok(testing::run_shell(
      "cd \"$1\" && mkdir d && for i in $(seq 50); do echo $i >d/$i; done && sync d && rm d/7 && "
      "kill -9 $(sed -n 's/^pid\\t//p' .kvslot/config)",
      {guard.path()}));
  const CommandResult checked = run_kvslot({"fsck", image});
  expect_ok(checked);
  EXPECT_LE(std::ranges::count(checked.out, '\n'), 2) << checked.out;
  const CommandResult repaired = run_kvslot({"fsck", "--repair", image});
  expect_ok(repaired);
  EXPECT_TRUE(says(repaired, "repair: replayed")) << repaired.out;
  EXPECT_EQ(std::ranges::count(run_kvslot({"fsck", image}).out, '\n'), 1);
}

}  // namespace
}  // namespace kvslot
