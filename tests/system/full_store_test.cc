// A full store: what a removal gives back can be written at once, though the kernel lets go of the
// removed file only after it has answered.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tests/support/command.h"
#include "tests/support/descriptor.h"
#include "tests/support/mount_test.h"
#include "tests/support/mounted_store.h"

namespace kvslot {
namespace {

using testing::MountedStore;

constexpr std::size_t kSizeBytes = 200'000;

class FullStoreTest : public testing::TransportTest {
 protected:
  // 0 or the errno of what failed.
  static int put(const std::string& path) {
    return testing::write_file(path, std::string(kSizeBytes, 'x'), O_EXCL);
  }
  // Puts files 0, 1, ... until one does not fit; returns that one's number, which is not there.
  static int fill(const MountedStore& store) {
    for (int i = 0;; ++i) {
      const std::string path = store.path(std::to_string(i));
      const int error = put(path);
      if (error == 0) continue;
      EXPECT_EQ(error, ENOSPC);
      EXPECT_EQ(::unlink(path.c_str()), 0);
      return i;
    }
  }
  static std::string options() { return "staging=8M," + transport(); }
};

TEST_P(FullStoreTest, WhatARemovalGivesBackCanBeWrittenAtOnce) {
  MountedStore store("16M", options());
  const int files = fill(store);
  ASSERT_GT(files, 10);
  for (int round = 0; round < 300; ++round) {
    const std::string path = store.path(std::to_string(round % files));
    ASSERT_EQ(::unlink(path.c_str()), 0);
    ASSERT_EQ(put(path), 0) << std::strerror(errno) << ", round " << round;
  }
  store.expect_sound();
}

// The last close of a removed file gives its space back, too.
TEST_P(FullStoreTest, WhatTheLastCloseGivesBackCanBeWrittenAtOnce) {
  MountedStore store("16M", options());
  const int files = fill(store);
  ASSERT_GT(files, 10);
  for (int round = 0; round < 100; ++round) {
    const std::string path = store.path(std::to_string(round % files));
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_EQ(::unlink(path.c_str()), 0);
    ASSERT_EQ(::close(fd), 0);
    ASSERT_EQ(put(path), 0) << std::strerror(errno) << ", round " << round;
  }
  store.expect_sound();
}

TEST_P(FullStoreTest, WhatARenameReplacesCanBeWrittenAtOnce) {
  MountedStore store("16M", options());
  const int files = fill(store);
  ASSERT_GT(files, 10);
  for (int round = 0; round < 100; ++round) {
    const std::string from = store.path(std::to_string(round % files));
    const std::string to = store.path(std::to_string((round + 1) % files));
    ASSERT_EQ(::rename(from.c_str(), to.c_str()), 0);
    ASSERT_EQ(put(from), 0) << std::strerror(errno) << ", round " << round;
  }
  store.expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Transports, FullStoreTest, testing::kTransports,
                         testing::name_of_transport);

}  // namespace
}  // namespace kvslot
