// fsck as a user meets it: what it prints, what it mends, and what it returns.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "tests/support/attached_image.h"
#include "tests/support/command.h"
#include "tests/support/daemon_process.h"
#include "tests/support/damage.h"
#include "tests/support/mount_test.h"
#include "tests/support/mounted_store.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::CommandResult;
using testing::expect_ok;
using testing::expect_refused;
using testing::fingerprint;
using testing::run_kvslot;
using testing::run_shell;

class FsckTest : public ::testing::Test {
 protected:
  FsckTest() : path_(testing::make_store(directory_.path("store.img"))) {}
  void garble_copy(std::uint64_t offset_bytes) {
    testing::overwrite(path_, offset_bytes + 100, "garbled");
  }

  testing::TempDir directory_;
  std::string path_;
};

bool says(const CommandResult& result, const std::string& part) {
  return result.out.find(part) != std::string::npos;
}

bool complains(const CommandResult& result, const std::string& part) {
  return result.err.find(part) != std::string::npos;
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

// ---- salvage ----

class FsckSalvageTest : public FsckTest {
 protected:
  FsckSalvageTest() : out_(directory_.path("out")) {
    for (const auto& [key, value] : values_) expect_ok(run_kvslot({"put", path_, key}, value));
  }
  void expect_all_of_it() {
    EXPECT_EQ(run_shell("cat \"$1\"", {out_ + "/dir/key"}).out, "value");
    for (const auto& [key, value] : values_)
      EXPECT_TRUE(run_shell("cat \"$1\"", {out_ + "/" + key}).out == value) << key;
  }
  CommandResult salvage() { return run_kvslot({"fsck", "--salvage", out_, path_}); }

  const std::vector<std::pair<std::string, std::string>> values_ = {
      {"dir/sub/large", std::string(300'000, 'l')},
      {"dir/block", std::string(4096, 'b')},
      {"empty", ""},
      {"odd\x01\n\xff name", "odd"},
      {std::string(255, 'n'), "long"}};
  std::string out_;
};

TEST_F(FsckSalvageTest, AWholeStoreComesOutAndIsNotWrittenTo) {
  const std::uint64_t before = fingerprint(path_);
  const CommandResult result = salvage();
  expect_ok(result);
  EXPECT_TRUE(says(result, "salvaged everything: 6 files, 2 directories")) << result.out;
  EXPECT_EQ(fingerprint(path_), before);
  expect_all_of_it();
}

TEST_F(FsckSalvageTest, WithoutASuperblockEverythingComesOut) {
  const auto size = std::filesystem::file_size(path_);
  for (const std::uint64_t offset : {std::uint64_t{0}, size - (128U << 10U)})
    testing::overwrite(path_, offset, std::string(128U << 10U, '\0'));
  expect_refused(run_kvslot({"get", path_, "empty"}), 1, path_);
  const CommandResult result = salvage();
  EXPECT_EQ(result.exit_code, 4) << result.out << result.err;
  EXPECT_TRUE(says(result, "no copy of the superblock is good")) << result.out;
  expect_all_of_it();
}

TEST_F(FsckSalvageTest, ADamagedValueIsPartialAndItsHoleIsNamed) {
  const CommandResult found =
      run_shell("grep -abo llllllll \"$1\" | head -1 | cut -d: -f1", {path_});
  testing::overwrite(path_, std::stoull(found.out) + 10, "X");
  const CommandResult result = salvage();
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_TRUE(says(result, "'dir/sub/large'.partial: of 300000 bytes 0 to 131072 are missing"))
      << result.out;
  EXPECT_FALSE(std::filesystem::exists(out_ + "/dir/sub/large"));
  EXPECT_EQ(std::filesystem::file_size(out_ + "/dir/sub/large.partial"), 300'000U);
}

TEST_F(FsckSalvageTest, TheFolderHasToBeNewOrEmpty) {
  std::filesystem::create_directory(out_);
  expect_ok(salvage());
  expect_refused(salvage(), 8, out_);
  out_ = path_;
  const CommandResult on_file = salvage();
  expect_refused(on_file, 8, out_);
  EXPECT_TRUE(complains(on_file, "give a folder that is empty")) << on_file.err;
  out_ = directory_.path("missing/out");
  const CommandResult below_nothing = salvage();
  expect_refused(below_nothing, 8, out_);
  EXPECT_TRUE(complains(below_nothing, "make the folder above it first")) << below_nothing.err;
  expect_refused(run_kvslot({"fsck", "--salvage", "", path_}), 16, "--help");
  expect_refused(run_kvslot({"fsck", "--salvage", directory_.path("x"), "--repair", path_}), 16,
                 "--help");
}

TEST_F(FsckSalvageTest, AFullFolderIsOneLine) {
  if (const std::string why = testing::why_no_mount(); !why.empty()) GTEST_SKIP() << why;
  const testing::MountGuard small(directory_.path("small"));
  ASSERT_EQ(::mount("kvslot-test", small.path().c_str(), "tmpfs", 0, "size=64k"), 0);
  out_ = small.path("out");
  const CommandResult full = salvage();
  expect_refused(full, 8, out_);
  EXPECT_TRUE(complains(full, "where there is more room")) << full.err;
}

TEST_F(FsckSalvageTest, WhatIsNoStoreIsRefused) {
  const std::string zeros = directory_.make_image("zeros.img", 16 << 20);
  const CommandResult nothing = run_kvslot({"fsck", "--salvage", out_, zeros});
  expect_refused(nothing, 8, zeros);
  EXPECT_TRUE(complains(nothing, "restore a backup")) << nothing.err;
  EXPECT_FALSE(complains(nothing, "'kvslot fsck")) << "which was just tried: " << nothing.err;
}

TEST_F(FsckSalvageTest, SymbolicLinksAreMadeAndNeverFollowed) {
  if (const std::string why = testing::why_no_mount(); !why.empty()) GTEST_SKIP() << why;
  const testing::MountGuard guard(directory_.path("mnt"));
  expect_ok(testing::run_mount(path_, guard.path()));
  expect_ok(run_shell("ln -s /etc/passwd \"$1/link\" && ln -s .. \"$1/dir/up\"", {guard.path()}));
  expect_ok(run_kvslot({"unmount", guard.path()}));
  expect_ok(salvage());
  EXPECT_EQ(std::filesystem::read_symlink(out_ + "/link"), "/etc/passwd");
  EXPECT_EQ(std::filesystem::read_symlink(out_ + "/dir/up"), "..");
}

// What `find` tells of everything below a folder but the control directory.
std::string listing_of(const std::string& folder) {
  return run_shell(
             "cd \"$1\" && find . -mindepth 1 -name .kvslot -prune -o -mindepth 1 -printf "
             "'%P %m %U:%G %T@ %y %l\\n' | sort",
             {folder})
      .out;
}

TEST_F(FsckSalvageTest, ModesOwnersTimesAndAttributesComeOutAsTheyWere) {
  if (const std::string why = testing::why_no_mount(); !why.empty()) GTEST_SKIP() << why;
  const testing::MountGuard guard(directory_.path("mnt"));
  expect_ok(testing::run_mount(path_, guard.path()));
  const std::string& root = guard.path();
  expect_ok(
      run_shell("cd \"$1\" && mkdir -p closed/in && echo v >closed/in/file && "
                "ln -s in closed/link && chmod 4750 dir/block && chmod 1777 dir",
                {root}));
  if (::geteuid() == 0)
    expect_ok(run_shell("cd \"$1\" && chown 12:34 dir/key && chown -h 56:78 closed/link", {root}));
  expect_ok(
      run_shell("cd \"$1\" && touch -h -d '2001-02-03 04:05:06.789' closed/link && "
                "touch -d '1969-12-31 23:59:58.5 UTC' closed/in/file dir/sub && "
                "chmod 0500 closed/in && chmod 0 closed && touch -d 2002-01-01 closed",
                {root}));
  ASSERT_EQ(::setxattr((root + "/dir/key").c_str(), "user.note", "why", 3, 0), 0);
  std::string expected = listing_of(root);
  const std::size_t special = expected.find(" 4750 ");
  ASSERT_NE(special, std::string::npos) << expected;
  expected.replace(special, 6, " 750 ");  // a program that runs as somebody else is not made
  expect_ok(run_kvslot({"unmount", root}));
  const CommandResult result = salvage();
  EXPECT_EQ(listing_of(out_), expected);
  std::array<char, 8> note{};
  const auto size = ::getxattr((out_ + "/dir/key").c_str(), "user.note", note.data(), note.size());
  if (size < 0 && errno == EOPNOTSUPP) {
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_TRUE(says(result, "the folder does not hold all")) << result.out;
  } else {
    expect_ok(result);
    EXPECT_EQ(std::string(note.data(), 3), "why");
  }
  expect_ok(run_shell("chmod -R u+rwx \"$1\"", {out_}));  // so that it can be removed
}

using FsckAfterKill = testing::MountTest;

TEST_F(FsckAfterKill, APlainKillLeavesOneLineOfRemarks) {
  testing::TempDir directory;
  const std::string image = directory.path("store.img");
  expect_ok(run_kvslot({"format", image, "--size", "64M"}));
  const testing::MountGuard guard(directory.path("mnt"));
  expect_ok(testing::run_mount(image, guard.path()));
  expect_ok(testing::run_shell(
      "cd \"$1\" && mkdir d && for i in $(seq 50); do echo $i >d/$i; done && sync d && rm d/7",
      {guard.path()}));
  testing::DaemonProcess(guard.path()).kill();
  const CommandResult checked = run_kvslot({"fsck", image});
  expect_ok(checked);
  EXPECT_LE(std::ranges::count(checked.out, '\n'), 2) << checked.out;
  const CommandResult repaired = run_kvslot({"fsck", "--repair", image});
  expect_ok(repaired);
  EXPECT_TRUE(says(repaired, "repair: replayed")) << repaired.out;
  EXPECT_EQ(std::ranges::count(run_kvslot({"fsck", image}).out, '\n'), 1);
}

// The last batch of all: nothing follows that would say that it was durable, but the idle store.
TEST_F(FsckAfterKill, AValueThatRotsAfterItsSyncIsDamageOfThisValueAlone) {
  testing::TempDir directory;
  const std::string image = directory.path("store.img");
  expect_ok(run_kvslot({"format", image, "--size", "64M"}));
  const testing::MountGuard guard(directory.path("mnt"));
  expect_ok(testing::run_mount(image, guard.path(), "commit=1"));
  ASSERT_FALSE(HasFailure()) << "nothing will be durable";
  expect_ok(run_shell("cd \"$1\" && for i in $(seq 50); do echo value $i >$i; done && sync .",
                      {guard.path()}));
  // Behind the flush there is a block, and it is no batch.
  expect_ok(
      run_shell("until awk '/^(published_upto|durable_upto|unflushed_bytes)/ {n[$1] = $2} "
                "END {exit !(n[\"published_upto\"] > n[\"durable_upto\"] && "
                "n[\"unflushed_bytes\"] == 0)}' \"$1\"/.kvslot/stats \"$1\"/.kvslot/journal; "
                "do :; done",
                {guard.path()}));
  const auto extents = testing::extents_of(guard.path(), "50");
  ASSERT_EQ(extents.size(), 1U);
  testing::DaemonProcess(guard.path()).kill();
  testing::overwrite(image, extents[0].device_offset_bytes, "V");
  const CommandResult checked = run_kvslot({"fsck", image});
  EXPECT_EQ(checked.exit_code, 4) << checked.out << checked.err;
  const std::string out = directory.path("out");
  const CommandResult salvaged = run_kvslot({"fsck", "--salvage", out, image});
  EXPECT_EQ(salvaged.exit_code, 4) << salvaged.out << salvaged.err;
  EXPECT_TRUE(says(salvaged, "49 files")) << salvaged.out;
  expect_ok(testing::run_mount(image, guard.path()));
  EXPECT_EQ(run_shell("cat \"$1\"", {guard.path("49")}).out, "value 49\n");
  const CommandResult read = run_shell("cat \"$1\"", {guard.path("50")});
  EXPECT_TRUE(complains(read, "Input/output error")) << read.out << read.err;
  expect_ok(run_kvslot({"unmount", guard.path()}));
  EXPECT_EQ(run_kvslot({"fsck", image}).exit_code, 4);
}

}  // namespace
}  // namespace kvslot
