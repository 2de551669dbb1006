// The control directory through a real mount, read by the tools that people read it with.
#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/command.h"
#include "tests/support/mount_guard.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::CommandResult;
using testing::MountGuard;
using testing::run_kvslot;
using testing::run_shell;

class PseudoFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_no_mount(); !why.empty()) GTEST_SKIP() << why;
    image_ = directory_.path("store.img");
    ASSERT_EQ(run_kvslot({"format", image_, "--size", "64M"}).exit_code, 0);
    mount_ = std::make_unique<MountGuard>(directory_.path("mnt"));
  }
  void TearDown() override {
    if (!is_mounted_) return;
    const CommandResult unmounted = run_kvslot({"unmount", mount_->path()});
    EXPECT_EQ(unmounted.exit_code, 0) << unmounted.err;
    EXPECT_EQ(run_kvslot({"fsck", image_}).exit_code, 0);
  }

  void mount(const std::string& options = "rw") {
    const CommandResult mounted = testing::run_mount(image_, mount_->path(), options);
    ASSERT_EQ(mounted.exit_code, 0) << mounted.err;
    is_mounted_ = true;
  }

  // A script at the root of the mount; gives what it prints.
  std::string shell(const std::string& script) {
    const CommandResult result = run_shell("cd \"$1\" && { " + script + "; }", {mount_->path()});
    EXPECT_EQ(result.exit_code, 0) << script << "\n" << result.err;
    return result.out;
  }

  testing::TempDir directory_;
  std::string image_;
  std::unique_ptr<MountGuard> mount_;
  bool is_mounted_ = false;
};

TEST_F(PseudoFilesTest, TheControlDirectoryIsThereByNameButNotListed) {
  mount();
  shell("echo x >file");
  EXPECT_EQ(shell("ls -A"), "file\n");
  EXPECT_EQ(shell("find . -mindepth 1"), "./file\n");
  EXPECT_NE(shell("ls .kvslot").find("stats"), std::string::npos);
  shell("rm -rf ./*; rm -rf -- *");
  EXPECT_NE(shell("ls .kvslot").find("stats"), std::string::npos);
}

TEST_F(PseudoFilesTest, ControlOptionShowsOrRemovesIt) {
  mount("control=visible");
  EXPECT_EQ(shell("ls -A"), ".kvslot\n");
  EXPECT_EQ(run_kvslot({"unmount", mount_->path()}).exit_code, 0);
  mount("control=none");
  EXPECT_FALSE(std::filesystem::exists(mount_->path(".kvslot/stats")));
}

TEST_F(PseudoFilesTest, NobodyChangesAnythingInIt) {
  mount();
  for (const char* script : {"mkdir .kvslot", "touch .kvslot/new", "rm -f .kvslot/stats",
                             "mv .kvslot x", "rmdir .kvslot", "echo x >.kvslot/stats",
                             "mkdir .kvslot/dir", "ln -s x .kvslot/link", "mv .kvslot/stats x"}) {
    const CommandResult result = run_shell("cd \"$1\" && " + std::string(script), {mount_->path()});
    EXPECT_NE(result.exit_code, 0) << script;
  }
  EXPECT_NE(shell("cat .kvslot/stats").size(), 0U);
}

TEST_F(PseudoFilesTest, EveryToolSeesTheWholeContent) {
  mount();
  shell("mkdir d; for i in $(seq 2000); do echo $i >d/$i; done; sync .");
  for (const char* name : {"batches", "config", "index", "slots"}) {
    const std::string file = std::string(".kvslot/") + name;
    const std::string content = shell("cat " + file);
    const std::string lines = std::to_string(std::ranges::count(content, '\n'));
    EXPECT_EQ(shell("wc -l <" + file), lines + "\n") << name;
    EXPECT_EQ(shell("grep -c '' " + file), lines + "\n") << name;
    EXPECT_EQ(shell("sort " + file + " | wc -l"), lines + "\n") << name;
    EXPECT_EQ(shell("awk 'END { print NR }' " + file), lines + "\n") << name;
    EXPECT_EQ(shell("sed -n '$=' " + file), lines + "\n") << name;
    const std::size_t last_line = content.rfind('\n', content.size() - 2) + 1;
    EXPECT_EQ(shell("tail -n 1 " + file), content.substr(last_line)) << name;
    EXPECT_EQ(shell("head -n 1 " + file), content.substr(0, content.find('\n') + 1)) << name;
    EXPECT_EQ(shell("cp " + file + " /dev/stdout | wc -l"), lines + "\n") << name;
  }
  EXPECT_EQ(shell("grep -c '^d/' .kvslot/index"), "2000\n");
}

TEST_F(PseudoFilesTest, BoundedFilesStateTheirTrueSizeAndAreArchivedWhole) {
  mount();
  shell("echo x >file; sync .");
  for (const char* name : {"batches", "config", "errors", "inflight", "journal", "key/file"}) {
    const std::string file = std::string(".kvslot/") + name;
    EXPECT_EQ(shell("[ -s " + file + " ]; tar cf - " + file + " | tar xOf - | wc -c"),
              shell("wc -c <" + file))
        << name;
    EXPECT_EQ(shell("stat -c %s " + file), shell("cat " + file + " | wc -c")) << name;
  }
  EXPECT_EQ(shell("stat -c %s .kvslot/index .kvslot/slots"), "0\n0\n");
}

// The shell reads a byte at a time, so this is slow for the daemon and the index long under way.
TEST_F(PseudoFilesTest, IndexShowsEachFileOnceWhileOthersComeAndGo) {
  mount();
  shell("mkdir stay pass; for i in $(seq 150); do echo $i >stay/$i; done; sync .");
  const std::string counted = shell(
      "(while [ ! -e stop ]; do echo x >pass/a; rm pass/a; done) & "
      "for round in 1 2; do "
      "  while read -r line; do echo \"$line\"; done <.kvslot/index | grep -c '^stay/'; "
      "done; touch stop; wait");
  EXPECT_EQ(counted, "150\n150\n");
}

TEST_F(PseudoFilesTest, KeyAndSlotShowWhereAFileIs) {
  mount();
  shell("mkdir -p a/b; head -c 1000000 /dev/urandom >a/b/c; sync .");
  EXPECT_EQ(shell("ls .kvslot/key .kvslot/key/a/b"), ".kvslot/key:\na\n\n.kvslot/key/a/b:\nc\n");
  EXPECT_EQ(shell("awk -F '\\t' '$1 == \"size_bytes\" { print $2 }' .kvslot/key/a/b/c"),
            "1000000\n");
  EXPECT_EQ(shell("slot=$(awk -F '\\t' '$1 == \"run\" { print $2; exit }' .kvslot/key/a/b/c); "
                  "awk -F '\\t' 'NR == 2 { print $3, $4, $6 }' .kvslot/slot/$slot"),
            "live a/b/c holds\n");
  EXPECT_NE(run_shell("cat \"$1\"/.kvslot/slot/99999999", {mount_->path()}).exit_code, 0);
  EXPECT_NE(run_shell("cat \"$1\"/.kvslot/key/missing", {mount_->path()}).exit_code, 0);
}

TEST_F(PseudoFilesTest, SlotsCoverTheDeviceOnce) {
  mount();
  shell("for i in $(seq 100); do head -c $((i * 1000)) /dev/zero | tr '\\0' x >$i; done; sync .");
  EXPECT_EQ(shell("awk -F '\\t' 'NR > 1 { if ($1 != next_slot) bad = 1; next_slot = $1 + $2 } "
                  "END { print bad + 0, next_slot }' .kvslot/slots"),
            shell("awk -F '\\t' '$1 == \"slot_count\" { print 0, $2 }' .kvslot/config"));
}

TEST_F(PseudoFilesTest, ConfigSaysWhatIsInEffect) {
  mount("commit=3,sync");
  const std::string config = shell("cat .kvslot/config");
  for (const char* part : {"\nengine\t", "\ntransport\t", "\npid\t", "\nuuid\t", "commit=3"}) {
    EXPECT_NE(config.find(part), std::string::npos) << part << "\n" << config;
  }
}

TEST_F(PseudoFilesTest, ControlFilesRunAndReport) {
  mount();
  shell("echo x >file; echo 1 >.kvslot/flush; echo 1 >.kvslot/checkpoint");
  std::string report;
  do {
    std::this_thread::yield();
    report = shell("cat .kvslot/checkpoint");
  } while (report.find("waiting") != std::string::npos ||
           report.find("running") != std::string::npos);
  EXPECT_NE(report.find("done"), std::string::npos) << report;
  EXPECT_EQ(shell("stat -c %a .kvslot/checkpoint"), "600\n");
  EXPECT_NE(run_shell("echo 2 >\"$1\"/.kvslot/flush", {mount_->path()}).exit_code, 0);
}

}  // namespace
}  // namespace kvslot
