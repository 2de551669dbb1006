// See sparse_copy.h.
#include "tests/support/sparse_copy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "core/unique_fd.h"

namespace kvslot::testing {

void copy_sparse(const std::string& from, const std::string& to) {
  const UniqueFd source(::open(from.c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd target(::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  struct stat status{};
  ASSERT_TRUE(source && target && ::fstat(source.get(), &status) == 0) << from << " to " << to;
  ASSERT_EQ(::ftruncate(target.get(), status.st_size), 0);
  std::vector<char> part(1 << 20);
  for (off_t at = 0; (at = ::lseek(source.get(), at, SEEK_DATA)) >= 0;) {
    const off_t end = ::lseek(source.get(), at, SEEK_HOLE);
    while (at < end) {
      const auto size = static_cast<std::size_t>(std::min<off_t>(end - at, 1 << 20));
      const ssize_t count = ::pread(source.get(), part.data(), size, at);
      ASSERT_GT(count, 0) << from;
      ASSERT_EQ(::pwrite(target.get(), part.data(), static_cast<std::size_t>(count), at), count);
      at += count;
    }
  }
}

}  // namespace kvslot::testing
