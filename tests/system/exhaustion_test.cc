// A mount that does not get the memory or the threads it asks for: it works with less, or says so
// in one line and leaves nothing behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/support/command.h"
#include "tests/support/mount_guard.h"
#include "tests/support/mount_test.h"
#include "tests/support/ordinary_user.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::run_shell;

class ExhaustionTest : public testing::MountTest,
                       public ::testing::WithParamInterface<const char*> {};

TEST_P(ExhaustionTest, WithLittleMemoryAMountWorksOrSaysSoInOneLine) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need address space without limit";
#endif
  const testing::TempDir directory;
  const std::string image = directory.path("store.img");
  testing::expect_ok(testing::run_kvslot({"format", image, "--size", "16M"}));
  const testing::MountGuard mount(directory.path("mnt"));
  // Copies of the mount in other namespaces keep its connection when it is unmounted; each is there
  // for long enough, and the next one soon enough, for one to be made just before that.
  const testing::BackgroundCommand copies(
      {"/bin/sh", "-c",
       "copy() { unshare --mount --propagation private \"$@\"; }\n"
       "copy true || exit; while :; do copy sleep 0.02 & sleep 0.005; done"});
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

// One process or thread more each time, until two mounts in a row work. For root there is no limit.
// LeakSanitizer wants a thread of its own at the end.
constexpr const char* kFewThreads = R"sh(
export ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0"
kvslot format store.img --size 16M >/dev/null || exit
mkdir m
limit=0 refused=0 worked=0
while [ $worked -lt 2 ] && [ $limit -lt 100 ]; do
  limit=$((limit + 1))
  prlimit --nproc=$limit bin/kvslot mount store.img m -o "$1" 2>said
  code=$?
  if grep -q " $PWD/m fuse" /proc/self/mounts; then mounted=yes; else mounted=no; fi
  if [ $code = 0 ]; then
    worked=$((worked + 1))
    echo $limit >m/file && [ "$(cat m/file)" = $limit ] || echo "limit $limit: no store"
    kvslot unmount m || exit
    continue
  fi
  refused=$((refused + 1)) worked=0
  [ $mounted = no ] || { echo "limit $limit: still mounted"; fusermount3 -u -z m; }
  [ "$(wc -l <said)" = 1 ] && grep -q '^kvslot: .*;' said || { echo "limit $limit:"; cat said; }
done
[ $worked = 2 ] && [ $refused -gt 2 ] || echo "limit $limit: $refused were refused"
kvslot mount store.img m -o "$1" && kvslot unmount m && kvslot fsck store.img >/dev/null
)sh";

TEST_P(ExhaustionTest, WithFewThreadsAMountWorksOrSaysSoInOneLine) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer needs a thread of its own";
#endif
  const testing::TempDir directory;
  const auto result = testing::run_as_ordinary_user(directory, kFewThreads, GetParam());
  if (result.exit_code == testing::kNoOrdinaryUser)
    GTEST_SKIP() << testing::kWhyNoOrdinaryUser << result.err;
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
}

INSTANTIATE_TEST_SUITE_P(Transports, ExhaustionTest,
                         ::testing::Values("transport=dev", "transport=auto"),
                         [](const auto& tested) {
                           return std::string(tested.param).substr(sizeof "transport=" - 1);
                         });

}  // namespace
}  // namespace kvslot
