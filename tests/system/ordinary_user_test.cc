// Somebody who is not root: an image, a mount by fusermount3 and everything in it are the user's
// own.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/mount_test.h"
#include "tests/support/ordinary_user.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::kNoOrdinaryUser;
using testing::kWhyNoOrdinaryUser;
using testing::ordinary_uid;
using testing::run_as_ordinary_user;

// $1: options of the mount.
constexpr const char* kUserScript = R"(
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
  const auto result = run_as_ordinary_user(directory, kUserScript, transport());
  if (result.exit_code == kNoOrdinaryUser) GTEST_SKIP() << kWhyNoOrdinaryUser << result.err;
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const std::string user = ordinary_uid();
  const std::string owner = user + " " + user;
  EXPECT_EQ(result.out,
            owner + " 755\n" + owner + "\n" + owner + " 755\nhello\nmore\n" + owner + " 700\n0\n");
}

INSTANTIATE_TEST_SUITE_P(Transports, OrdinaryUserTest, testing::kTransports,
                         testing::name_of_transport);

}  // namespace
}  // namespace kvslot
