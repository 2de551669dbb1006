// What the process that serves a mount holds: no rights, memory or descriptors that it has no use
// for; and where it mounts and unmounts.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>

#include "tests/support/command.h"
#include "tests/support/control_files.h"
#include "tests/support/daemon_process.h"
#include "tests/support/mount_guard.h"
#include "tests/support/mount_test.h"
#include "tests/support/mounted_store.h"
#include "tests/support/proc_files.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::CommandResult;
using testing::DaemonProcess;
using testing::fields_of;
using testing::is_mounted;
using testing::MountedStore;
using testing::MountGuard;
using testing::run_command;
using testing::run_kvslot;
using testing::run_shell;
using testing::server_of;
using testing::text_of;

class DaemonRights : public testing::MountTest,
                     public ::testing::WithParamInterface<const char*> {};

constexpr std::uint64_t kKeptCapabilities =
    (std::uint64_t{1} << CAP_SYS_ADMIN) | (std::uint64_t{1} << CAP_DAC_READ_SEARCH);

void expect_no_capability_in_effect(const MountedStore& store) {
  const std::string process = "/proc/" + std::to_string(server_of(store.root()));
  int threads = 0;
  for (const auto& task : std::filesystem::directory_iterator(process + "/task")) {
    auto status = fields_of(task.path() / "status");
    if (status.empty()) continue;  // it ended meanwhile
    SCOPED_TRACE(task.path().string() + " " + status["Name"]);
    ++threads;
    for (const char* const set : {"CapEff", "CapInh", "CapAmb", "CapBnd"}) {
      EXPECT_EQ(std::stoull(status[set], nullptr, 16), 0U) << set;
    }
    EXPECT_EQ(std::stoull(status["CapPrm"], nullptr, 16) & ~kKeptCapabilities, 0U);
    EXPECT_EQ(status["NoNewPrivs"], "1");
  }
  EXPECT_GT(threads, 3);
}

TEST_P(DaemonRights, NoThreadHasACapabilityInEffect) {
  MountedStore store("16M", GetParam());
  store.shell(
      "for i in 1 2 3 4; do head -c 300000 /dev/zero >$M/$i & done; wait; sync $M;"
      "cat $M/* | wc -c; echo 1 >$M/.kvslot/checkpoint; cat $M/.kvslot/slot/0");
  expect_no_capability_in_effect(store);
}

// Opening a store that was not closed reads in batches, before the rights are dropped.
TEST_P(DaemonRights, NoThreadOfARecoveryKeepsACapability) {
  MountedStore store("64M", GetParam());
  store.shell("for i in $(seq 300); do head -c 20000 /dev/zero >$M/$i; done; sync $M");
  store.kill_and_remount();
  expect_no_capability_in_effect(store);
}

INSTANTIATE_TEST_SUITE_P(Options, DaemonRights,
                         ::testing::Values("transport=dev", "transport=auto", "engine=posix",
                                           "engine=uring"),
                         [](const auto& tested) {
                           std::string name(tested.param);
                           std::ranges::replace(name, '=', '_');
                           return name;
                         });

class DaemonTest : public testing::MountTest {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    if (IsSkipped()) return;
    image_ = directory_.path("store.img");
    ASSERT_EQ(run_kvslot({"format", image_, "--size", "16M"}).exit_code, 0);
  }
  testing::TempDir directory_;
  std::string image_;
};

TEST_F(DaemonTest, ItKeepsNothingOfItsStarter) {
  const MountGuard mount(directory_.path("mnt"));
  const CommandResult mounted =
      run_shell("cd \"$1\" && exec 7</etc/passwd && SECRET=hunter2 exec \"$2\" mount \"$3\" \"$4\"",
                {directory_.path(), KVSLOT_BINARY, image_, mount.path()});
  ASSERT_EQ(mounted.exit_code, 0) << mounted.err;
  const std::string process = "/proc/" + std::to_string(server_of(mount.path()));
  EXPECT_EQ(text_of(process + "/environ").find("hunter2"), std::string::npos);
  EXPECT_EQ(std::filesystem::read_symlink(process + "/cwd"), "/");
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd")) {
    const std::string number = entry.path().filename();
    auto info = fields_of(process + "/fdinfo/" + number);
    std::error_code gone;
    EXPECT_NE(std::filesystem::read_symlink(entry.path(), gone), "/etc/passwd") << number;
    if (info.empty() || std::stoi(number) <= STDERR_FILENO) continue;
    EXPECT_NE(std::stoul(info["flags"], nullptr, 8) & O_CLOEXEC, 0U)
        << number << " is handed on: " << std::filesystem::read_symlink(entry.path());
  }
  EXPECT_EQ(run_kvslot({"unmount", mount.path()}).exit_code, 0);
}

// Whether somebody with the same user and capabilities may look at the process' memory.
int open_memory_as_equal(pid_t pid) {
  const pid_t child = ::fork();
  if (child == 0) {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct kept[2]{};
    for (int i = 0; i < 2; ++i) {
      kept[i].effective = kept[i].permitted =
          static_cast<std::uint32_t>(kKeptCapabilities >> (32 * i));
    }
    if (::syscall(SYS_capset, &header, kept) != 0) ::_exit(255);
    const std::string memory = "/proc/" + std::to_string(pid) + "/mem";
    ::_exit(::open(memory.c_str(), O_RDONLY | O_CLOEXEC) >= 0 ? 0 : errno);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST_F(DaemonTest, ItsMemoryCannotBeDumped) {
  const MountGuard mount(directory_.path("mnt"));
  ASSERT_EQ(testing::run_mount(image_, mount.path()).exit_code, 0);
  EXPECT_EQ(open_memory_as_equal(server_of(mount.path())), EACCES);
  EXPECT_EQ(run_kvslot({"unmount", mount.path()}).exit_code, 0);
}

TEST_F(DaemonTest, AMountIsMadeWithoutSetuidAndDevices) {
  const MountGuard mount(directory_.path("mnt"));
  ASSERT_EQ(testing::run_mount(image_, mount.path()).exit_code, 0);
  const std::string mounts = run_shell("grep -F \" $1 \" /proc/self/mounts", {mount.path()}).out;
  EXPECT_NE(mounts.find("nosuid,nodev"), std::string::npos) << mounts;
  EXPECT_NE(mounts.find("default_permissions"), std::string::npos) << mounts;
  EXPECT_EQ(run_kvslot({"unmount", mount.path()}).exit_code, 0);
}

// Where another user may rename directories above the mount point, the daemon must not be led to
// unmount something else; and it gets there although it no longer ignores permissions.
TEST_F(DaemonTest, ASignalTakesDownItsOwnMountWhereverItsPathLeadsNow) {
  const std::string above = directory_.path("above");
  const std::string moved = directory_.path("moved");
  const std::string other = directory_.path("other");
  for (const std::string& made : {above, other}) std::filesystem::create_directory(made);
  ASSERT_EQ(::chown(above.c_str(), 61001, 61001), 0);
  ASSERT_EQ(::chmod(above.c_str(), 0700), 0);
  const MountGuard mount(above + "/mnt");
  const MountGuard other_mount(other + "/mnt");
  const std::string other_image = directory_.path("other.img");
  ASSERT_EQ(run_kvslot({"format", other_image, "--size", "16M"}).exit_code, 0);
  ASSERT_EQ(testing::run_mount(image_, mount.path()).exit_code, 0);
  ASSERT_EQ(testing::run_mount(other_image, other_mount.path()).exit_code, 0);
  const DaemonProcess server(mount.path());

  std::filesystem::rename(above, moved);
  std::filesystem::create_directory_symlink(other, above);
  const MountGuard moved_mount(moved + "/mnt");  // takes it down if the daemon does not
  server.signal(SIGTERM);
  server.wait_for_end();
  EXPECT_FALSE(is_mounted(moved + "/mnt"));
  EXPECT_TRUE(is_mounted(other + "/mnt"));
  EXPECT_EQ(run_kvslot({"unmount", other_mount.path()}).exit_code, 0);
  EXPECT_EQ(run_kvslot({"fsck", image_}).exit_code, 0);
}

// Without them the store would be opened as one, and be written to by whoever prints.
TEST_F(DaemonTest, ClosedStandardDescriptorsDoNotHitTheStore) {
  const MountGuard mount(directory_.path("mnt"));
  const std::string before = run_shell("cksum <\"$1\"", {image_}).out;
  for (const char* const command : {"format", "ls", "info"}) {
    (void)run_shell("exec \"$1\" \"$2\" \"$3\" <&- >&- 2>&-", {KVSLOT_BINARY, command, image_});
  }
  EXPECT_EQ(run_shell("cksum <\"$1\"", {image_}).out, before);

  ASSERT_EQ(run_shell("exec \"$1\" mount \"$2\" \"$3\" <&- >&- 2>&-",
                      {KVSLOT_BINARY, image_, mount.path()})
                .exit_code,
            0);
  EXPECT_EQ(run_shell("echo kept >\"$1/file\" && sync \"$1\"", {mount.path()}).exit_code, 0);
  EXPECT_EQ(run_kvslot({"unmount", mount.path()}).exit_code, 0);
  EXPECT_EQ(run_kvslot({"get", image_, "file"}).out, "kept\n");
}

}  // namespace
}  // namespace kvslot
