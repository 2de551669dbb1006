// `kvslot exec`: a command with a mounted store, and nothing left behind.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/support/command.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::BackgroundCommand;
using testing::CommandResult;
using testing::run_kvslot;
using testing::Words;

class ExecTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_no_mount(); !why.empty()) GTEST_SKIP() << why;
    image_ = directory_.path("store.img");
    mounts_ = directory_.path("mounts");
    std::filesystem::create_directory(mounts_);
  }
  void TearDown() override {
    if (mounts_.empty()) return;
    EXPECT_TRUE(std::filesystem::is_empty(mounts_)) << "left behind";
  }

  [[nodiscard]] Words words(const Words& command, const Words& options = {}) const {
    Words all = {"env", "TMPDIR=" + mounts_, KVSLOT_BINARY, "exec", image_, "--size", "16M"};
    all.insert(all.end(), options.begin(), options.end());
    all.push_back("--");
    all.insert(all.end(), command.begin(), command.end());
    return all;
  }
  CommandResult exec(const std::string& script) {
    return testing::run_command(words({"/bin/sh", "-c", script}));
  }

  testing::TempDir directory_;
  std::string image_;
  std::string mounts_;
};

TEST_F(ExecTest, TheStoreIsMadeOnceAndKeepsWhatTheCommandWrote) {
  const CommandResult first = exec("echo kept >\"$KVSLOT_MOUNT\"/file; cat \"$KVSLOT_MOUNT\"/file");
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out, "kept\n");
  EXPECT_EQ(exec("cat \"$KVSLOT_MOUNT\"/file").out, "kept\n");
  EXPECT_EQ(run_kvslot({"get", image_, "file"}).out, "kept\n");
  EXPECT_EQ(run_kvslot({"fsck", image_}).exit_code, 0);
}

TEST_F(ExecTest, TheExitCodeIsTheCommands) {
  EXPECT_EQ(exec("exit 0").exit_code, 0);
  EXPECT_EQ(exec("exit 7").exit_code, 7);
  EXPECT_EQ(exec("kill -9 $$").exit_code, 128 + SIGKILL);
  EXPECT_EQ(testing::run_command(words({"/no/such/command"})).exit_code, 127);
  EXPECT_EQ(testing::run_command(words({"/"})).exit_code, 126);
}

TEST_F(ExecTest, ArgumentsReachTheCommandUnchanged) {
  const CommandResult result =
      testing::run_command(words({"printf", "[%s]", "--size", "-o", "", "a b", "--"}));
  EXPECT_EQ(result.out, "[--size][-o][][a b][--]") << result.err;
}

TEST_F(ExecTest, MountOptionsAreTaken) {
  EXPECT_EQ(exec("echo x >\"$KVSLOT_MOUNT\"/file").exit_code, 0);
  const CommandResult result = testing::run_command(
      words({"/bin/sh", "-c", "cat \"$KVSLOT_MOUNT\"/file && ! echo y >\"$KVSLOT_MOUNT\"/file"},
            {"-o", "ro"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(testing::run_command(words({"true"}, {"-o", "bogus"})).exit_code, 2);
}

TEST_F(ExecTest, ASignalIsPassedOnAndTheMountTakenDown) {
  for (const int signal : {SIGTERM, SIGINT}) {
    BackgroundCommand command(words({"/bin/sh", "-c", "echo ready; exec sleep infinity"}));
    EXPECT_EQ(command.read_line(), "ready");
    ::kill(command.pid(), signal);
    EXPECT_EQ(command.wait(), 128 + signal);
  }
  EXPECT_EQ(run_kvslot({"fsck", image_}).exit_code, 0);
}

TEST_F(ExecTest, ACommandMayHandleTheSignalItself) {
  BackgroundCommand command(words({"/bin/sh", "-c",
                                   "trap 'echo saved >\"$KVSLOT_MOUNT\"/saved; exit 3' TERM; echo "
                                   "ready; while :; do read x; done"}));
  EXPECT_EQ(command.read_line(), "ready");
  ::kill(command.pid(), SIGTERM);
  EXPECT_EQ(command.wait(), 3);
  EXPECT_EQ(run_kvslot({"get", image_, "saved"}).out, "saved\n");
}

TEST_F(ExecTest, FilesThatStayOpenDoNotKeepTheMount) {
  const CommandResult result = exec(
      "exec 9>\"$KVSLOT_MOUNT\"/file; echo x >&9; (exec sleep 3600 >/dev/null 2>&1) & echo $!");
  EXPECT_EQ(::kill(std::atoi(result.out.c_str()), SIGKILL), 0) << result.out;
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("still open"), std::string::npos) << result.err;
  EXPECT_EQ(run_kvslot({"get", image_, "file"}).out, "x\n");
}

TEST_F(ExecTest, ARemovedFileThatStaysOpenWithNewBytesHarmsNobody) {
  const CommandResult result = exec(
      "cd \"$KVSLOT_MOUNT\"; exec 9>file; echo x >&9; rm file; cd /;"
      "(exec sleep 3600 >/dev/null 2>&1) & echo $!");
  EXPECT_EQ(::kill(std::atoi(result.out.c_str()), SIGKILL), 0) << result.out;
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(run_kvslot({"fsck", image_}).exit_code, 0);
}

TEST_F(ExecTest, AStoreThatCannotBeMountedIsRefusedBeforeTheCommandRuns) {
  testing::TempDir other;
  const std::string missing = other.path("missing.img");
  const CommandResult result = run_kvslot({"exec", missing, "--", "touch", other.path("ran")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find(missing), std::string::npos) << result.err;
  EXPECT_FALSE(std::filesystem::exists(other.path("ran")));
}

}  // namespace
}  // namespace kvslot
