// A mounted store whose device keeps its requests, or fails all of them: nothing hangs but what the
// kernel holds, and what was acknowledged is there when the device is back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <memory>
#include <optional>
#include <string>

#include "tests/support/attached_image.h"
#include "tests/support/command.h"
#include "tests/support/daemon_process.h"
#include "tests/support/failing_file.h"
#include "tests/support/mount_guard.h"
#include "tests/support/patience.h"
#include "tests/support/temp_dir.h"

namespace kvslot::testing {
namespace {

// On the file itself, where a thread waits for each request, or on a loop device over it, where the
// caller waits and leaves.
class HungDeviceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_mount(); !why.empty()) GTEST_SKIP() << why;
    const std::string image = directory_.path("store.img");
    expect_ok(run_kvslot({"format", image, "--size", "64M"}));
    device_ = std::make_unique<FailingFile>(image, directory_.path("dev"));
    ASSERT_TRUE(device_->is_mounted());
    store_path_ = device_->path();
    if (GetParam() == std::string("loop")) {
      loop_.emplace(store_path_);
      store_path_ = loop_->path();
      if (store_path_.empty()) GTEST_SKIP() << "no loop devices here";
    }
    mount();
    shell("echo kept >\"$M/kept\" && sync \"$M\"");
    ASSERT_FALSE(HasFailure()) << "there is no store";
  }
  void TearDown() override {
    if (device_ == nullptr) return;
    device_->release();
    (void)run_kvslot({"unmount", guard_.path()});
  }

  // A test sets a deadline that can pass when everything hangs already.
  void mount() {
    expect_mounted(run_mount(store_path_, guard_.path()), guard_.path());
    daemon_ = std::make_unique<DaemonProcess>(guard_.path());
  }
  CommandResult run(const std::string& script) {
    return run_shell("M=\"$1\"\n" + script, {guard_.path()});
  }
  std::string shell(const std::string& script) {
    const CommandResult result = run(script);
    EXPECT_EQ(result.exit_code, 0) << script << "\n" << result.err;
    return result.out;
  }
  void set_deadline() {
    shell("echo 1 >\"$M/.kvslot/deadline\"");
    if (HasFailure()) device_->release();  // or what hangs would hold up the test
  }
  void hold_everything() {
    for (const auto operation :
         {FileOperation::kRead, FileOperation::kWrite, FileOperation::kFlush})
      device_->hold(operation);
  }
  void expect_stopped() {
    EXPECT_EQ(shell("grep -c '\tdevice\t' \"$M/.kvslot/errors\""), "1\n");
    EXPECT_NE(run("echo more >\"$M/more\"").exit_code, 0);
    EXPECT_EQ(shell("awk '$1 == \"read_only\" { print $2 }' \"$M/.kvslot/stats\""), "1\n");
  }
  // It returns, and does not claim that all is well.
  void expect_unmounted_unclosed() {
    const CommandResult unmounted = run_kvslot({"unmount", guard_.path()});
    EXPECT_EQ(unmounted.exit_code, 1);
    EXPECT_THAT(unmounted.err, ::testing::HasSubstr("unmounted, but"));
  }
  // Mounts again, once the device is back; the test unmounts cleanly at its end.
  void expect_everything_kept() {
    daemon_->wait_for_end();
    mount();
    EXPECT_EQ(shell("cat \"$M/kept\""), "kept\n");
    shell("echo new >\"$M/new\" && sync \"$M\"");
    expect_ok(run_kvslot({"unmount", guard_.path()}));
    EXPECT_EQ(run_kvslot({"fsck", store_path_}).exit_code, 0);
  }

  TempDir directory_;
  std::unique_ptr<FailingFile> device_;
  std::optional<AttachedImage> loop_;
  std::string store_path_;
  MountGuard guard_{directory_.path("mnt")};
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_P(HungDeviceTest, AMountWhoseDeviceHangsAnswersAndIsUnmounted) {
  hold_everything();
  BackgroundCommand sync(
      {"/bin/sh", "-c", "echo x >\"$0/hung\"; exec sync \"$0/hung\" 2>&1", guard_.path()});
  device_->wait_until_held(1);
  EXPECT_EQ(shell("ls \"$M\""), "hung\nkept\n");
  EXPECT_NE(shell("cat \"$M/.kvslot/inflight\"").find("hung\t"), std::string::npos);
  set_deadline();
  EXPECT_NE(sync.wait(), 0);
  expect_stopped();
  expect_unmounted_unclosed();
  device_->release();
  expect_everything_kept();
}

TEST_P(HungDeviceTest, SigtermEndsAMountWhoseDeviceHangs) {
  hold_everything();
  BackgroundCommand sync(
      {"/bin/sh", "-c", "echo x >\"$0/hung\"; exec sync \"$0/hung\" 2>&1", guard_.path()});
  device_->wait_until_held(1);
  set_deadline();
  daemon_->signal(SIGTERM);
  EXPECT_NE(sync.wait(), 0);
  yield_until([&] { return ::access(guard_.path(".kvslot/stats").c_str(), F_OK) != 0; });
  device_->release();
  expect_everything_kept();
}

TEST_P(HungDeviceTest, ADeviceThatHangsWhenItIsOpenedIsRefusedInTime) {
  expect_ok(run_kvslot({"unmount", guard_.path()}));
  hold_everything();
  const auto refused = run_kvslot({"mount", store_path_, guard_.path(), "-o", "deadline=1"});
  expect_refused(refused, 1, store_path_ + ": ");
  EXPECT_NE(refused.err.find("timed out"), std::string::npos) << refused.err;
  device_->release();
  // The one that was refused lets go of it when it is answered.
  while (run_mount(store_path_, guard_.path()).err.find("open elsewhere") != std::string::npos) {
  }
  EXPECT_EQ(shell("cat \"$M/kept\""), "kept\n");
  expect_ok(run_kvslot({"unmount", guard_.path()}));
  mount();
}

TEST_P(HungDeviceTest, ADeviceThatFailsEverythingStopsTheStoreAndComesBack) {
  for (const auto operation : {FileOperation::kRead, FileOperation::kWrite, FileOperation::kFlush})
    device_->fail(operation, EIO);
  EXPECT_NE(run("echo x >\"$M/lost\" && sync \"$M/lost\"").exit_code, 0);
  EXPECT_EQ(shell("grep -c '\tjournal\t' \"$M/.kvslot/errors\""), "1\n");
  EXPECT_NE(run("echo more >\"$M/more\"").exit_code, 0);
  expect_unmounted_unclosed();
  for (const auto operation : {FileOperation::kRead, FileOperation::kWrite, FileOperation::kFlush})
    device_->fail(operation, 0);
  expect_everything_kept();
}

TEST_P(HungDeviceTest, AStoreThatStoppedForAFailedFlushIsNotUnmountedInSilence) {
  device_->fail(FileOperation::kFlush, EIO);
  EXPECT_NE(run("echo x >\"$M/lost\" && sync \"$M/lost\"").exit_code, 0);
  expect_unmounted_unclosed();
  device_->fail(FileOperation::kFlush, 0);
  expect_everything_kept();
}

INSTANTIATE_TEST_SUITE_P(Devices, HungDeviceTest, ::testing::Values("file", "loop"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace kvslot::testing
