// An open file of a test, closed when the test is done with it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

namespace kvslot::testing {

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, mode_t mode = 0644)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {
    EXPECT_GE(fd_, 0) << path << ": " << std::strerror(errno);
  }
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return fd_; }  // NOLINT: stands for the descriptor

  int close() {
    const int result = fd_ >= 0 ? ::close(fd_) : 0;
    fd_ = -1;
    return result;
  }
  // Where the file stands; how much was taken, or -1.
  [[nodiscard]] ssize_t write(std::string_view bytes) const {
    return ::write(fd_, bytes.data(), bytes.size());
  }
  // All of it at that place, or the test fails.
  void write_at(off_t offset, std::string_view bytes) const {
    EXPECT_EQ(::pwrite(fd_, bytes.data(), bytes.size(), offset), static_cast<ssize_t>(bytes.size()))
        << std::strerror(errno);
  }
  [[nodiscard]] std::string read(std::size_t size, off_t offset = 0) const {
    std::string bytes(size, '\0');
    const ssize_t count = ::pread(fd_, bytes.data(), size, offset);
    bytes.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    return bytes;
  }
  // Nothing of it stays in the kernel: the next access comes to the daemon.
  void forget_pages() const {
    EXPECT_EQ(::fsync(fd_), 0);
    EXPECT_EQ(::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED), 0);
  }

 private:
  int fd_;
};

// Writes a whole file; the errno of what failed first, or 0.
[[nodiscard]] inline int write_file(const std::string& path, std::string_view bytes, int flags,
                                    bool is_durable = false) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
  if (fd < 0) return errno;
  int error = 0;
  while (!bytes.empty() && error == 0) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0)
      error = errno;
    else
      bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  if (is_durable && error == 0 && ::fsync(fd) != 0) error = errno;
  if (::close(fd) != 0 && error == 0) error = errno;
  return error;
}

[[nodiscard]] inline int write_durably(const std::string& path, std::string_view bytes) {
  return write_file(path, bytes, O_TRUNC, true);
}

}  // namespace kvslot::testing
