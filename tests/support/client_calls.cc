// See client_calls.h.
#include "tests/support/client_calls.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace kvslot::testing {
namespace {

int outcome_of_transfer(ssize_t count, std::size_t wanted) {
  if (count < 0) return errno;
  return static_cast<std::size_t>(count) == wanted ? 0 : kShort;
}

std::vector<iovec> pieces_of(const void* data, std::size_t size, std::size_t piece_bytes) {
  std::vector<iovec> pieces;
  auto* const start = static_cast<std::byte*>(const_cast<void*>(data));
  for (std::size_t at = 0; at < size; at += piece_bytes) {
    pieces.push_back({start + at, std::min(piece_bytes, size - at)});
  }
  return pieces;
}

}  // namespace

std::string describe_outcome(int outcome) {
  if (outcome == kShort) return "a call did only a part";
  return outcome == 0 ? "done" : std::strerror(outcome);
}

ClientFile::ClientFile(const std::string& path, int flags, mode_t mode)
    : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)), error_(fd_ < 0 ? errno : 0) {}

ClientFile::~ClientFile() { (void)close(); }

int ClientFile::close() {
  const int result = fd_ >= 0 ? outcome_of(::close(fd_)) : 0;
  fd_ = -1;
  return result;
}

int ClientFile::write(ConstChunk bytes) const {
  return outcome_of_transfer(::write(fd_, bytes.data(), bytes.size()), bytes.size());
}

int ClientFile::read(MutableChunk bytes) const {
  return outcome_of_transfer(::read(fd_, bytes.data(), bytes.size()), bytes.size());
}

int ClientFile::readv(MutableChunk bytes) const {
  const iovec all{bytes.data(), bytes.size()};
  return outcome_of_transfer(::readv(fd_, &all, 1), bytes.size());
}

int ClientFile::pwrite(ConstChunk bytes, std::uint64_t offset) const {
  return outcome_of_transfer(::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
                             bytes.size());
}

int ClientFile::pread(MutableChunk bytes, std::uint64_t offset) const {
  return outcome_of_transfer(::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
                             bytes.size());
}

int ClientFile::pwritev(ConstChunk bytes, std::uint64_t offset, std::size_t piece_bytes) const {
  const std::vector<iovec> pieces = pieces_of(bytes.data(), bytes.size(), piece_bytes);
  return outcome_of_transfer(
      ::pwritev(fd_, pieces.data(), static_cast<int>(pieces.size()), static_cast<off_t>(offset)),
      bytes.size());
}

int ClientFile::preadv(MutableChunk bytes, std::uint64_t offset, std::size_t piece_bytes) const {
  const std::vector<iovec> pieces = pieces_of(bytes.data(), bytes.size(), piece_bytes);
  return outcome_of_transfer(
      ::preadv(fd_, pieces.data(), static_cast<int>(pieces.size()), static_cast<off_t>(offset)),
      bytes.size());
}

int ClientFile::write_loop(ConstChunk bytes) const {
  bool is_short = false;
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
    if (count < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    is_short = is_short || !bytes.empty();
  }
  return is_short ? kShort : 0;
}

int ClientFile::look_as_python() const {
  struct stat status{};
  termios terminal{};
  if (::fstat(fd_, &status) != 0) return errno;
  if (status.st_blksize != 4096) return EINVAL;
  if (::ioctl(fd_, TCGETS, &terminal) == 0) return EISNAM;
  if (errno != ENOTTY) return errno;
  return outcome_of(::lseek(fd_, 0, SEEK_CUR));
}

int outcome_of(long result) { return result < 0 ? errno : 0; }

int first_failure(std::initializer_list<int> outcomes) {
  const auto* const failed =
      std::ranges::find_if(outcomes, [](int outcome) { return outcome != 0; });
  return failed == outcomes.end() ? 0 : *failed;
}

int make_directories(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST) return 0;
  if (errno != ENOENT) return errno;
  if (const int error = make_directories(path.substr(0, path.rfind('/'))); error != 0) return error;
  return ::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST ? 0 : errno;
}

int rename_file(const std::string& from, const std::string& to) {
  return outcome_of(::rename(from.c_str(), to.c_str()));
}

int remove_file(const std::string& path) { return outcome_of(::unlink(path.c_str())); }

bool exists(const std::string& path) { return size_of(path) >= 0; }

std::int64_t size_of(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 ? status.st_size : -1;
}

int read_mapped(const std::string& path, std::uint64_t offset, MutableChunk bytes) {
  const ClientFile file(path, O_RDONLY);
  struct stat status{};
  if (file.error() != 0) return file.error();
  if (::fstat(file.fd(), &status) != 0) return errno;
  const std::size_t size = offset + bytes.size();
  if (static_cast<std::size_t>(status.st_size) < size) return kShort;
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (mapped == MAP_FAILED) return errno;
  std::memcpy(bytes.data(), static_cast<const std::byte*>(mapped) + offset, bytes.size());
  return outcome_of(::munmap(mapped, size));
}

}  // namespace kvslot::testing
