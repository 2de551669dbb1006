// Somebody who is not root: an image, a mount by fusermount3 and everything in it are the user's
// own.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/support/command.h"
#include "tests/support/mount_guard.h"
#include "tests/support/mount_test.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::run_shell;

constexpr const char* kNobody = "65534";  // fusermount3 wants a user who has a name
constexpr int kCannot = 77;

// As root, in a mount namespace of its own, where everybody may use /dev/fuse as on most machines.
// The command and its libraries are copied, because the user may not reach where they are.
// $1 directory, $2 command, $3 user, $4 the user's script, $5 its argument.
constexpr const char* kAsUser = R"(
cd "$1" && mkdir bin && cp "$2" bin/kvslot || exit 77
unshare --mount --propagation private true || exit 77
ldd "$2" | awk '$3 ~ /libfuse3/ {print $3}' | xargs -I{} cp {} bin/
exec unshare --mount --propagation private /bin/sh -c '
  mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse || exit 77
  exec setpriv --reuid="$1" --regid="$1" --clear-groups /bin/sh -c "$2" sh "$3"
' sh "$3" "$4" "$5"
)";

// $1: options of the mount.
constexpr const char* kUserScript = R"(
export LD_LIBRARY_PATH="$PWD/bin"
kvslot() { bin/kvslot "$@"; }
ls "$PWD" >/dev/null && head -c 0 /dev/fuse 2>/dev/null && command -v fusermount3 >/dev/null && [ -x bin/kvslot ] || exit 77
trap 'fusermount3 -u -z m 2>/dev/null || true' EXIT
set -e
kvslot format store.img --size 16M >/dev/null
mkdir m
kvslot mount store.img m -o "$1"
stat -c '%u %g %a' m
echo hello >m/file && mkdir m/dir && mv m/file m/dir/moved && echo more >>m/dir/moved
stat -c '%u %g' m/dir/moved
kvslot unmount m
kvslot mount store.img m -o "$1"
stat -c '%u %g %a' m
cat m/dir/moved
chmod 700 m && rm -r m/dir
kvslot unmount m
kvslot fsck store.img >/dev/null
kvslot mount store.img m -o "$1"
stat -c '%u %g %a' m
ls m | wc -l
kvslot unmount m
)";

using OrdinaryUserTest = testing::TransportTest;

TEST_P(OrdinaryUserTest, OwnsTheStoreThatWasMadeAndMounted) {
  const testing::TempDir directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 0777), 0);
  const auto result =
      run_shell(kAsUser, {directory.path(), KVSLOT_BINARY, kNobody, kUserScript, transport()});
  if (result.exit_code == kCannot) {
    GTEST_SKIP() << "no mount namespace, folder, /dev/fuse or fusermount3 for an ordinary user: "
                 << result.err;
  }
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out,
            "65534 65534 755\n65534 65534\n65534 65534 755\nhello\nmore\n65534 65534 700\n0\n");
}

INSTANTIATE_TEST_SUITE_P(Transports, OrdinaryUserTest, testing::kTransports,
                         testing::name_of_transport);

}  // namespace
}  // namespace kvslot
