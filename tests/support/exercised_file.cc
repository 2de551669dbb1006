// See exercised_file.h.
#include "tests/support/exercised_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace kvslot::testing {
namespace {

constexpr std::size_t kNotesMax = 40;
constexpr std::size_t kHandlesMax = 3;
constexpr std::size_t kPageBytes = 4096;

// Where direct transfers begin: on a page, and a little beside it.
class DirectBuffer {
 public:
  explicit DirectBuffer(std::size_t size, std::size_t beside)
      : memory_(static_cast<char*>(std::aligned_alloc(
            kPageBytes, (size + beside + kPageBytes) / kPageBytes * kPageBytes))),
        beside_(beside) {}
  ~DirectBuffer() { std::free(memory_); }
  DirectBuffer(const DirectBuffer&) = delete;
  DirectBuffer& operator=(const DirectBuffer&) = delete;
  [[nodiscard]] char* data() const { return memory_ + beside_; }

 private:
  char* memory_;
  std::size_t beside_;
};

// The whole pages of a file, shared.
class Mapping {
 public:
  Mapping(int fd, std::size_t size, int protection)
      : size_((size + kPageBytes - 1) / kPageBytes * kPageBytes),
        data_(::mmap(nullptr, size_, protection, MAP_SHARED, fd, 0)) {
    EXPECT_NE(data_, MAP_FAILED) << std::strerror(errno);
  }
  ~Mapping() {
    if (is_there()) ::munmap(data_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] bool is_there() const { return data_ != MAP_FAILED; }
  [[nodiscard]] char* data() const { return static_cast<char*>(data_); }

 private:
  std::size_t size_;
  void* data_;
};

}  // namespace

ExercisedFile::ExercisedFile(std::string path, std::uint64_t seed)
    : path_(std::move(path)), random_(seed) {
  fd_ = open_again(O_RDWR | O_CREAT | O_EXCL);
}

void ExercisedFile::step() {
  using Step = void (ExercisedFile::*)();
  static constexpr std::array kSteps = {
      &ExercisedFile::write,         &ExercisedFile::write,        &ExercisedFile::write_pieces,
      &ExercisedFile::append,        &ExercisedFile::append,       &ExercisedFile::write_direct,
      &ExercisedFile::write_direct,  &ExercisedFile::write_mapped, &ExercisedFile::write_mapped,
      &ExercisedFile::read,          &ExercisedFile::read,         &ExercisedFile::read_direct,
      &ExercisedFile::read_direct,   &ExercisedFile::read_mapped,  &ExercisedFile::truncate,
      &ExercisedFile::allocate,      &ExercisedFile::allocate,     &ExercisedFile::copy,
      &ExercisedFile::seek,          &ExercisedFile::synchronise,  &ExercisedFile::forget_pages,
      &ExercisedFile::change_handle, &ExercisedFile::rename,       &ExercisedFile::replace};
  const Step next = kSteps.at(pick(kSteps.size()));
  (this->*next)();
}

void ExercisedFile::expect_whole() {
  note("everything is read");
  struct stat status{};
  ASSERT_EQ(::fstat(fd_, &status), 0);
  EXPECT_EQ(static_cast<std::size_t>(status.st_size), model_.size()) << history();
  std::string bytes(model_.size() + 1, '?');
  const ssize_t count = ::pread(fd_, bytes.data(), bytes.size(), 0);
  ASSERT_EQ(count, static_cast<ssize_t>(model_.size())) << history();
  bytes.pop_back();
  expect_bytes("pread of all", {.offset = 0, .size = model_.size()}, bytes);
  read_mapped();
}

void ExercisedFile::reopen() {
  close();
  fd_ = open_again(O_RDWR);
}

int ExercisedFile::open_again(int flags) {
  handles_.emplace_back(path_, flags);
  if (handles_.size() > kHandlesMax) handles_.pop_front();
  return handles_.back();
}

ExercisedFile::Range ExercisedFile::pick_range(std::size_t size_limit) {
  const std::size_t offset = pick(4) == 0 ? pick(kSizeMaxBytes / kPageBytes) * kPageBytes
                                          : pick(std::min(kSizeMaxBytes, model_.size() + 50'000));
  const std::size_t limit = std::min(kSizeMaxBytes - offset, pick(8) == 0 ? size_limit : 20'000);
  return {.offset = offset, .size = 1 + pick(limit)};
}

std::string ExercisedFile::pick_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t at = 0; at < size; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random_() | 1;  // zeros are what holes read as
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, size - at));
  }
  return bytes;
}

void ExercisedFile::note(const char* what, Range range) {
  std::array<char, 200> line{};
  std::snprintf(line.data(), line.size(), "%s %zu+%zu (file of %zu)", what, range.offset,
                range.size, model_.size());
  notes_.emplace_back(line.data());
  if (notes_.size() > kNotesMax) notes_.pop_front();
}

std::string ExercisedFile::history() const {
  std::string text = path_ + ", the last steps:\n";
  for (const std::string& line : notes_) text += "  " + line + "\n";
  return text;
}

void ExercisedFile::put(std::size_t offset, const std::string& bytes) {
  if (model_.size() < offset + bytes.size()) model_.resize(offset + bytes.size());
  model_.replace(offset, bytes.size(), bytes);
}

void ExercisedFile::expect_bytes(const char* how, Range range, const std::string& bytes) {
  const std::string_view expected = std::string_view(model_).substr(range.offset, range.size);
  if (bytes == expected) return;
  const auto differs = std::ranges::mismatch(bytes, expected).in1 - bytes.begin();
  FAIL() << how << " at " << range.offset << "+" << range.size << ": " << bytes.size()
         << " bytes, the first other one at " << range.offset + static_cast<std::size_t>(differs)
         << "\n"
         << history();
}

// ---- Writing ----

void ExercisedFile::write() {
  const Range range = pick_range(300'000);
  note("pwrite", range);
  const std::string bytes = pick_bytes(range.size);
  ASSERT_EQ(::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(range.offset)),
            static_cast<ssize_t>(bytes.size()))
      << std::strerror(errno) << history();
  put(range.offset, bytes);
}

void ExercisedFile::write_pieces() {
  const Range range = pick_range(50'000);
  note("pwritev", range);
  std::string bytes = pick_bytes(range.size);
  const std::size_t first = pick(range.size);
  const std::array<iovec, 3> pieces = {
      iovec{.iov_base = bytes.data(), .iov_len = first},
      iovec{.iov_base = bytes.data() + first, .iov_len = 0},
      iovec{.iov_base = bytes.data() + first, .iov_len = range.size - first}};
  ASSERT_EQ(::pwritev(fd_, pieces.data(), pieces.size(), static_cast<off_t>(range.offset)),
            static_cast<ssize_t>(bytes.size()))
      << std::strerror(errno) << history();
  put(range.offset, bytes);
}

void ExercisedFile::append() {
  const std::size_t size = 1 + pick(9000);
  if (model_.size() + size > kSizeMaxBytes) return;
  note("append", {.offset = model_.size(), .size = size});
  const std::string bytes = pick_bytes(size);
  const Descriptor end(path_, O_WRONLY | O_APPEND);
  ASSERT_EQ(end.write(bytes), static_cast<ssize_t>(size)) << std::strerror(errno) << history();
  put(model_.size(), bytes);
}

void ExercisedFile::write_direct() {
  Range range = pick_range(300'000);
  if (pick(2) == 0) {  // as clients do it
    range.offset = range.offset / kPageBytes * kPageBytes;
    range.size = std::max(range.size / kPageBytes, std::size_t{1}) * kPageBytes;
    range.size = std::min(range.size, kSizeMaxBytes - range.offset);
  }
  note("direct pwrite", range);
  const std::string bytes = pick_bytes(range.size);
  const DirectBuffer buffer(range.size, pick(3) == 0 ? pick(600) : 0);
  std::copy(bytes.begin(), bytes.end(), buffer.data());
  const Descriptor direct(path_, O_WRONLY | O_DIRECT);
  ASSERT_EQ(::pwrite(direct, buffer.data(), range.size, static_cast<off_t>(range.offset)),
            static_cast<ssize_t>(range.size))
      << std::strerror(errno) << history();
  put(range.offset, bytes);
}

void ExercisedFile::write_mapped() {
  if (model_.empty()) return;
  Range range = pick_range(100'000);
  range.offset %= model_.size();
  range.size = std::min(range.size, model_.size() - range.offset);
  note("mapped write", range);
  const Mapping mapping(fd_, model_.size(), PROT_READ | PROT_WRITE);
  ASSERT_TRUE(mapping.is_there()) << history();
  const std::string bytes = pick_bytes(range.size);
  std::copy(bytes.begin(), bytes.end(), mapping.data() + range.offset);
  if (pick(2) == 0) {
    EXPECT_EQ(::msync(mapping.data(), model_.size(), MS_SYNC), 0)
        << std::strerror(errno) << history();
  }
  put(range.offset, bytes);
}

// ---- Reading ----

void ExercisedFile::read() {
  const Range range = pick_range(300'000);
  note("pread", range);
  std::string bytes(range.size, '?');
  const ssize_t count = ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(range.offset));
  ASSERT_GE(count, 0) << std::strerror(errno) << history();
  bytes.resize(static_cast<std::size_t>(count));
  if (range.offset < model_.size())
    expect_bytes("pread", range, bytes);
  else
    EXPECT_EQ(count, 0) << history();
}

void ExercisedFile::read_direct() {
  const Range range = pick_range(300'000);
  note("direct pread", range);
  const DirectBuffer buffer(range.size, pick(3) == 0 ? pick(600) : 0);
  const Descriptor direct(path_, O_RDONLY | O_DIRECT);
  const ssize_t count =
      ::pread(direct, buffer.data(), range.size, static_cast<off_t>(range.offset));
  ASSERT_GE(count, 0) << std::strerror(errno) << history();
  if (range.offset < model_.size())
    expect_bytes("direct pread", range, {buffer.data(), static_cast<std::size_t>(count)});
  else
    EXPECT_EQ(count, 0) << history();
}

void ExercisedFile::read_mapped() {
  if (model_.empty()) return;
  note("mapped read", {.offset = 0, .size = model_.size()});
  const Mapping mapping(fd_, model_.size(), PROT_READ);
  ASSERT_TRUE(mapping.is_there()) << history();
  expect_bytes("mapped read", {.offset = 0, .size = model_.size()},
               {mapping.data(), model_.size()});
  // The rest of the last page reads as zeros, whatever was there before.
  const std::size_t rest = (kPageBytes - model_.size() % kPageBytes) % kPageBytes;
  const char* const end = mapping.data() + model_.size();
  EXPECT_TRUE(std::all_of(end, end + rest, [](char byte) { return byte == 0; }))
      << "old bytes behind the end\n"
      << history();
}

// Holes need not be told, but what is called one has only zeros, and what is data ends.
void ExercisedFile::seek() {
  note("SEEK_DATA, SEEK_HOLE");
  const auto size = static_cast<off_t>(model_.size());
  off_t at = 0;
  while (at < size) {
    const off_t data = ::lseek(fd_, at, SEEK_DATA);
    if (data < 0) {
      ASSERT_EQ(errno, ENXIO) << history();
    }
    const off_t data_or_end = data < 0 ? size : data;
    ASSERT_GE(data_or_end, at) << history();
    const auto hole = std::string_view(model_).substr(static_cast<std::size_t>(at),
                                                      static_cast<std::size_t>(data_or_end - at));
    EXPECT_EQ(hole.find_first_not_of('\0'), std::string_view::npos)
        << "data in a hole that begins at " << at << "\n"
        << history();
    if (data_or_end == size) break;
    at = ::lseek(fd_, data_or_end, SEEK_HOLE);
    ASSERT_GT(at, data_or_end) << history();
    ASSERT_LE(at, size) << history();
  }
  EXPECT_LT(::lseek(fd_, size, SEEK_DATA), 0);
  EXPECT_EQ(errno, ENXIO) << history();
  EXPECT_LT(::lseek(fd_, size, SEEK_HOLE), 0);
  EXPECT_EQ(errno, ENXIO) << history();
}

// ---- Sizes and holes ----

void ExercisedFile::truncate() {
  const std::size_t size =
      pick(4) == 0 ? pick(kSizeMaxBytes) : pick(std::min(kSizeMaxBytes, model_.size() + 9000));
  note("truncate", {.offset = size, .size = 0});
  const int result = pick(2) == 0 ? ::truncate(path_.c_str(), static_cast<off_t>(size))
                                  : ::ftruncate(fd_, static_cast<off_t>(size));
  ASSERT_EQ(result, 0) << std::strerror(errno) << history();
  model_.resize(size);
}

void ExercisedFile::allocate() {
  static constexpr std::array kModes = {
      0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE,
      FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE};
  const int mode = kModes.at(pick(kModes.size()));
  const Range range = pick_range(100'000);
  note(("fallocate mode " + std::to_string(mode)).c_str(), range);
  ASSERT_EQ(
      ::fallocate(fd_, mode, static_cast<off_t>(range.offset), static_cast<off_t>(range.size)), 0)
      << std::strerror(errno) << history();
  const std::size_t end = range.offset + range.size;
  if ((mode & FALLOC_FL_KEEP_SIZE) == 0 && model_.size() < end) model_.resize(end);
  if (mode == 0 || mode == FALLOC_FL_KEEP_SIZE || range.offset >= model_.size()) return;
  const std::size_t count = std::min(end, model_.size()) - range.offset;
  model_.replace(range.offset, count, count, '\0');
}

void ExercisedFile::copy() {
  if (model_.empty()) return;
  const std::size_t from = pick(model_.size());
  const std::size_t asked = 1 + pick(60'000);
  const std::size_t size = std::min(asked, model_.size() - from);
  const std::size_t to = pick(kSizeMaxBytes - size);
  note("copy_file_range from", {.offset = from, .size = asked});
  note("copy_file_range to", {.offset = to, .size = size});
  auto source = static_cast<off_t>(from);
  auto target = static_cast<off_t>(to);
  const ssize_t count = ::copy_file_range(fd_, &source, fd_, &target, asked, 0);
  if (to < from + size && from < to + size) {  // overlaps
    EXPECT_LT(count, 0) << history();
    EXPECT_EQ(errno, EINVAL) << history();
    return;
  }
  ASSERT_EQ(count, static_cast<ssize_t>(size)) << std::strerror(errno) << history();
  put(to, model_.substr(from, size));
}

// ---- Handles and names ----

void ExercisedFile::synchronise() {
  note("fsync");
  EXPECT_EQ(pick(2) == 0 ? ::fsync(fd_) : ::fdatasync(fd_), 0) << history();
}

void ExercisedFile::forget_pages() {
  note("pages forgotten");
  EXPECT_EQ(::fdatasync(fd_), 0) << std::strerror(errno) << history();
  EXPECT_EQ(::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED), 0);
}

void ExercisedFile::change_handle() {
  note("opened again");
  if (pick(2) == 0) handles_.clear();
  fd_ = open_again(O_RDWR);
}

void ExercisedFile::rename() {
  note("renamed to and fro");
  const std::string other = path_ + ".other";
  ASSERT_EQ(::rename(path_.c_str(), other.c_str()), 0) << std::strerror(errno) << history();
  ASSERT_EQ(::rename(other.c_str(), path_.c_str()), 0) << std::strerror(errno) << history();
}

// As programs save: a new file in its place, while the old one is open and still read.
void ExercisedFile::replace() {
  const std::string bytes = pick_bytes(1 + pick(30'000));
  note("replaced by another", {.offset = 0, .size = bytes.size()});
  const std::string temporary = path_ + ".tmp";
  {
    Descriptor next(temporary, O_WRONLY | O_CREAT | O_EXCL);
    ASSERT_EQ(next.write(bytes), static_cast<ssize_t>(bytes.size())) << history();
    ASSERT_EQ(next.close(), 0) << history();
  }
  ASSERT_EQ(::rename(temporary.c_str(), path_.c_str()), 0) << std::strerror(errno) << history();
  std::string old(model_.size(), '?');
  ASSERT_EQ(::pread(fd_, old.data(), old.size(), 0), static_cast<ssize_t>(old.size())) << history();
  expect_bytes("pread of the replaced file", {.offset = 0, .size = old.size()}, old);
  handles_.clear();
  model_ = bytes;
  fd_ = open_again(O_RDWR);
}

}  // namespace kvslot::testing
