// An image that lost its end, as a partition that was made again a little smaller.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/support/command.h"
#include "tests/support/mount_guard.h"
#include "tests/support/mount_test.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tree_content.h"

namespace kvslot::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using CutImage = MountTest;

TEST_F(CutImage, IsReadAndIsNotWrittenToAndSaysHowMuchIsMissing) {
  const TempDir directory;
  const std::string image = directory.path("image");
  expect_ok(run_kvslot({"format", image, "--size", "16M"}));
  expect_ok(run_kvslot({"put", image, "key"}, "value"));
  ASSERT_EQ(::truncate(image.c_str(), (16 << 20) - 4096), 0);
  const auto names_sizes = AllOf(HasSubstr("16773120 of 16777216 bytes"), HasSubstr("-o ro"));
  const MountGuard mount(directory.path("mount"));
  for (const CommandResult& refused :
       {run_kvslot({"put", image, "other"}, "value"), run_mount(image, mount.path(), "rw")}) {
    expect_refused(refused, 1, image);
    EXPECT_THAT(refused.err, names_sizes);
  }
  const CommandResult got = run_kvslot({"get", image, "key"});
  expect_ok(got);
  EXPECT_EQ(got.out, "value");
  const CommandResult mounted = run_mount(image, mount.path(), "ro");
  EXPECT_EQ(mounted.exit_code, 0);
  EXPECT_THAT(mounted.err,
              HasSubstr("16773120 of 16777216 bytes; keys that reach behind its end: 0"));
  EXPECT_EQ(read_tree(mount.path()).files.at("key"), "value");
  expect_ok(run_kvslot({"unmount", mount.path()}));
}

}  // namespace
}  // namespace kvslot::testing
