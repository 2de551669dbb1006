// A mount that does not get the memory it asks for: it works with less, or says so in one line and
// leaves nothing behind. Out of threads: tests/system/ordinary_user_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/support/command.h"
#include "tests/support/mount_guard.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::run_shell;

class ExhaustionTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ExhaustionTest, WithLittleMemoryAMountWorksOrSaysSoInOneLine) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need address space without limit";
#endif
  if (const std::string why = testing::why_no_mount(); !why.empty()) GTEST_SKIP() << why;
  const testing::TempDir directory;
  const std::string image = directory.path("store.img");
  testing::expect_ok(testing::run_kvslot({"format", image, "--size", "16M"}));
  const testing::MountGuard mount(directory.path("mnt"));
  // Copies of the mount in other namespaces keep its connection when it is unmounted.
  const testing::BackgroundCommand copies(
      {"/bin/sh", "-c", "while :; do unshare --mount --propagation private /bin/true; done"});
  int refused = 0;
  // From what starts the command to what it needs with all of its threads.
  for (int mebibytes = 20; mebibytes <= 140; mebibytes += 8) {
    SCOPED_TRACE(::testing::Message() << mebibytes << " MiB");
    const auto mounted =
        run_shell("ulimit -v $(($1 * 1024)) && exec \"$2\" mount \"$3\" \"$4\" -o staging=8M,$5",
                  {std::to_string(mebibytes), KVSLOT_BINARY, image, mount.path(), GetParam()});
    if (mounted.err.find("shared librar") != std::string::npos) continue;  // it did not start
    const bool is_mounted =
        run_shell("grep -q \" $1 fuse\" /proc/self/mounts", {mount.path()}).exit_code == 0;
    if (mounted.exit_code == 0) {
      // What then fails for lack of memory may end it, and the store stays whole.
      (void)testing::run_kvslot({"unmount", mount.path()});
      continue;
    }
    ++refused;
    EXPECT_EQ(mounted.exit_code, 1);
    EXPECT_FALSE(is_mounted);
    EXPECT_TRUE(mounted.err.starts_with("kvslot: ")) << mounted.err;
    EXPECT_EQ(std::ranges::count(mounted.err, '\n'), 1) << mounted.err;
    EXPECT_NE(mounted.err.find(';'), std::string::npos) << "no remedy: " << mounted.err;
  }
  EXPECT_GT(refused, 0);
  testing::expect_ok(testing::run_kvslot({"mount", image, mount.path(), "-o", GetParam()}));
  testing::expect_ok(testing::run_kvslot({"unmount", mount.path()}));
  EXPECT_EQ(testing::run_kvslot({"fsck", image}).exit_code, 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, ExhaustionTest,
                         ::testing::Values("transport=dev", "transport=auto"),
                         [](const auto& tested) {
                           return std::string(tested.param).substr(sizeof "transport=" - 1);
                         });

}  // namespace
}  // namespace kvslot
