// `kvslot mount` and `kvslot unmount` as a user meets them, and what bad input gets there.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <vector>

#include "tests/support/attached_image.h"
#include "tests/support/command.h"
#include "tests/support/daemon_process.h"
#include "tests/support/damage.h"
#include "tests/support/failing_file.h"
#include "tests/support/mount_guard.h"
#include "tests/support/mount_test.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::BackgroundCommand;
using testing::CommandResult;
using testing::expect_ok;
using testing::expect_refused;
using testing::fingerprint;
using testing::MountGuard;
using testing::run_kvslot;
using testing::run_mount;
using testing::run_shell;
using testing::Words;

class CliMountTest : public testing::MountTest {
 protected:
  // A store with one key.
  std::string make_store() { return testing::make_store(directory_.path("store.img")); }

  testing::TempDir directory_;
};

TEST_F(CliMountTest, WhatIsWrittenThroughAMountIsThereAfterwards) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  expect_ok(run_mount(path, mount.path()));
  EXPECT_EQ(run_shell("cat \"$1\"/dir/key", {mount.path()}).out, "value");
  EXPECT_EQ(run_shell("echo more >\"$1\"/more", {mount.path()}).exit_code, 0);
  expect_ok(run_kvslot({"unmount", mount.path()}));
  EXPECT_FALSE(std::filesystem::exists(mount.path("more")));
  // The store is closed when unmount returns: nothing has to be waited for.
  const CommandResult info = run_kvslot({"info", path});
  expect_ok(info);
  EXPECT_NE(info.out.find("clean"), std::string::npos) << info.out;
  EXPECT_EQ(run_kvslot({"get", path, "more"}).out, "more\n");
  expect_ok(run_kvslot({"fsck", path}));
}

TEST_F(CliMountTest, TheFormThatMountCallsWorks) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  expect_ok(run_kvslot({path, mount.path(), "-o", "rw,nosuid,nodev"}));
  EXPECT_TRUE(std::filesystem::exists(mount.path("dir/key")));
  expect_ok(run_kvslot({"umount", mount.path()}));
}

TEST_F(CliMountTest, AForegroundMountSaysWhenItIsReadyAndEndsWhenAsked) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  BackgroundCommand server({"/bin/sh", "-c", "exec \"$@\" --ready-fd 3 3>&1 >/dev/null", "sh",
                            KVSLOT_BINARY, "mount", path, mount.path(), "-f"});
  EXPECT_EQ(server.read_line(), "R");
  EXPECT_TRUE(std::filesystem::exists(mount.path("dir/key")));
  ::kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(mount.path("dir/key")));
  expect_ok(run_kvslot({"fsck", path}));
}

TEST_F(CliMountTest, ADaemonKeepsNoneOfItsStartersDescriptors) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  // The pipe ends only when nobody has it open any more.
  const CommandResult result =
      run_shell("\"$1\" mount \"$2\" \"$3\" 2>&1 | cat", {KVSLOT_BINARY, path, mount.path()});
  expect_ok(result);
  EXPECT_EQ(result.out, "");
  expect_ok(run_kvslot({"unmount", mount.path()}));
}

TEST_F(CliMountTest, AMountedStoreIsRefusedByEverythingElse) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  const MountGuard other(directory_.path("other"));
  expect_ok(run_mount(path, mount.path()));
  // At the same time, as each gives the other holder some seconds to let go.
  std::vector<std::future<void>> refusals;
  const auto expect_refusal = [&](int exit_code, const Words& words) {
    refusals.push_back(std::async(std::launch::async,
                                  [=] { expect_refused(run_kvslot(words), exit_code, path); }));
  };
  expect_refusal(1, {"mount", path, other.path()});
  expect_refusal(1, {"put", path, "key"});
  expect_refusal(1, {"ls", path});
  expect_refusal(8, {"fsck", path});
  expect_refusal(1, {"format", path, "--force"});
  for (auto& refusal : refusals) refusal.get();
  EXPECT_TRUE(std::filesystem::exists(mount.path("dir/key")));
  expect_ok(run_kvslot({"unmount", mount.path()}));
}

TEST_F(CliMountTest, ABlockDeviceIsHeldByItsMountAndSparedByFormat) {
  const std::string image = directory_.make_image("disk.img", 32 << 20);
  const testing::AttachedImage loop(image);
  if (loop.path().empty()) GTEST_SKIP() << "no loop devices here";
  const MountGuard mount(directory_.path("mnt"));
  expect_refused(run_kvslot({"format", image, "--force"}), 1, loop.path());
  expect_refused(run_kvslot({"format", loop.path(), "--size", "32M"}), 1, loop.path());
  expect_ok(run_kvslot({"format", loop.path()}));
  expect_refused(run_kvslot({"format", loop.path()}), 1, loop.path());
  expect_ok(run_mount(loop.path(), mount.path()));
  expect_refused(run_kvslot({"format", loop.path(), "--force"}), 1, loop.path());
  expect_refused(run_kvslot({"put", loop.path(), "key"}, "x"), 1, loop.path());
  EXPECT_EQ(run_shell("echo more >\"$1\"/more", {mount.path()}).exit_code, 0);
  expect_ok(run_kvslot({"unmount", mount.path()}));
  EXPECT_EQ(run_kvslot({"get", loop.path(), "more"}).out, "more\n");
}

TEST_F(CliMountTest, BadOptionsAreNamedAndNothingIsMounted) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  for (const char* option : {"bogus", "commit=soon", "control=perhaps", "staging=12Q", "umask=9",
                             "transport=pigeon", "ro,bogus"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find('='));
    const CommandResult result = run_kvslot({"mount", path, mount.path(), "-o", option});
    expect_refused(result, 2, name == "ro,bogus" ? "bogus" : name);
  }
  EXPECT_FALSE(std::filesystem::exists(mount.path("dir/key")));
}

TEST_F(CliMountTest, UnusableMountPointsAreNamed) {
  const std::string path = make_store();
  const std::uint64_t before = fingerprint(path);
  const std::string missing = directory_.path("missing");
  expect_refused(run_kvslot({"mount", path, missing}), 1, missing);
  const std::string file = directory_.make_image("file", 0);
  expect_refused(run_kvslot({"mount", path, file}), 1, file);
  EXPECT_EQ(fingerprint(path), before);
}

TEST_F(CliMountTest, ADirectoryThatIsNotEmptyCanBeMountedOn) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  std::ofstream(mount.path("hidden")) << "below";
  expect_ok(run_mount(path, mount.path()));
  EXPECT_FALSE(std::filesystem::exists(mount.path("hidden")));
  expect_ok(run_kvslot({"unmount", mount.path()}));
  EXPECT_TRUE(std::filesystem::exists(mount.path("hidden")));
}

TEST_F(CliMountTest, ABusyMountStaysMounted) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  expect_ok(run_mount(path, mount.path()));
  {
    const std::ifstream open_file(mount.path("dir/key"));
    ASSERT_TRUE(open_file.is_open());
    expect_refused(run_kvslot({"unmount", mount.path()}), 1, mount.path());
    EXPECT_TRUE(std::filesystem::exists(mount.path("dir/key")));
  }
  expect_ok(run_kvslot({"unmount", mount.path()}));
}

TEST_F(CliMountTest, UnmountingWhatIsNoMountOfOursIsRefused) {
  const MountGuard mount(directory_.path("mnt"));
  expect_refused(run_kvslot({"unmount", mount.path()}), 1, mount.path());
  expect_refused(run_kvslot({"unmount", directory_.path("missing")}), 1, "missing");
  ASSERT_EQ(::mount("kvslot-test", mount.path().c_str(), "tmpfs", 0, "size=64k"), 0);
  expect_refused(run_kvslot({"unmount", mount.path()}), 1, mount.path());
}

TEST_F(CliMountTest, UnmountFailsWhereNobodyCanSayThatTheStoreWasClosed) {
  const std::string path = make_store();
  testing::FailingFile device(path, directory_.path("device"));
  ASSERT_TRUE(device.is_mounted());
  const MountGuard mount(directory_.path("mnt"));
  expect_ok(run_mount(device.path(), mount.path()));
  EXPECT_EQ(run_shell("echo more >\"$1\"/more", {mount.path()}).exit_code, 0);
  device.fail(testing::FileOperation::kRead, EIO);
  const CommandResult unmounted = run_kvslot({"unmount", mount.path()});
  expect_refused(unmounted, 1, device.path());
  EXPECT_NE(unmounted.err.find("cannot be read"), std::string::npos) << unmounted.err;
  EXPECT_FALSE(std::filesystem::exists(mount.path("more")));
  device.fail(testing::FileOperation::kRead, 0);
  EXPECT_EQ(run_kvslot({"get", device.path(), "more"}).out, "more\n");
}

TEST_F(CliMountTest, UnmountFailsWhereTheImageIsGone) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  expect_ok(run_mount(path, mount.path()));
  std::filesystem::remove(path);
  expect_refused(run_kvslot({"unmount", mount.path()}), 1, path);
}

TEST_F(CliMountTest, UnmountFailsWhereTheImageIsGoneAlsoWithoutControlDirectory) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  expect_ok(run_mount(path, mount.path(), "control=none"));
  std::filesystem::remove(path);
  expect_refused(run_kvslot({"unmount", mount.path()}), 1, path);
}

TEST_F(CliMountTest, AMountWithoutControlDirectoryIsUnmountedAndClosed) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  expect_ok(run_mount(path, mount.path(), "control=none"));
  EXPECT_EQ(run_shell("echo more >\"$1\"/more", {mount.path()}).exit_code, 0);
  expect_ok(run_kvslot({"unmount", mount.path()}));
  EXPECT_EQ(run_kvslot({"get", path, "more"}).out, "more\n");
}

TEST_F(CliMountTest, AKilledDaemonsMountIsReplacedByTheNextOne) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  expect_ok(run_mount(path, mount.path()));
  testing::DaemonProcess(mount.path()).kill();
  expect_ok(run_mount(path, mount.path()));
  EXPECT_EQ(run_shell("cat \"$1\"/dir/key", {mount.path()}).out, "value");
  expect_ok(run_kvslot({"unmount", mount.path()}));
  expect_ok(run_kvslot({"fsck", path}));
}

TEST_F(CliMountTest, UnmountDoesNotHangWhereTheDaemonIsStopped) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  expect_ok(run_mount(path, mount.path()));
  testing::DaemonProcess daemon(mount.path());
  daemon.stop();
  // The shell waits until nobody holds the other end of the pipe.
  expect_refused(run_shell("timeout 120 /bin/sh -c 'said=$(\"$1\" unmount \"$2\" 2>&1); code=$?; "
                           "echo \"$said\" >&2; exit $code' sh \"$1\" \"$2\"",
                           {KVSLOT_BINARY, mount.path()}),
                 1, mount.path());
  daemon.signal(SIGCONT);
  CommandResult unmounted;
  do {  // what had waited inside may need a moment to leave
    unmounted = run_kvslot({"unmount", mount.path()});
  } while (unmounted.err.find("is busy") != std::string::npos);
  expect_ok(unmounted);
}

TEST_F(CliMountTest, ADeadMountIsUnmountedAndWhatThatMeansIsSaid) {
  const std::string path = make_store();
  const MountGuard mount(directory_.path("mnt"));
  expect_ok(run_mount(path, mount.path()));
  testing::DaemonProcess(mount.path()).kill();
  const CommandResult unmounted = run_kvslot({"unmount", mount.path()});
  expect_refused(unmounted, 1, path);
  EXPECT_NE(unmounted.err.find("unmounted, but"), std::string::npos) << unmounted.err;
  expect_refused(run_kvslot({"unmount", mount.path()}), 1, mount.path());
  EXPECT_EQ(run_kvslot({"get", path, "dir/key"}).out, "value");
}

}  // namespace
}  // namespace kvslot
