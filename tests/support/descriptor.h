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

}  // namespace kvslot::testing
