// System calls as programs that keep chunks make them: one call for each buffer, whatever its size.
// What a call did in part is told apart from what it did and from what failed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvslot::testing {

// These return 0, an errno, or this where a call did only a part, which no error says.
inline constexpr int kShort = 10'000;
[[nodiscard]] std::string describe_outcome(int outcome);

using ConstChunk = std::span<const std::byte>;
using MutableChunk = std::span<std::byte>;

// A file that a program has open; closed when the program is done with it.
class ClientFile {
 public:
  ClientFile(const std::string& path, int flags, mode_t mode = 0644);
  ~ClientFile();
  ClientFile(const ClientFile&) = delete;
  ClientFile& operator=(const ClientFile&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  // Of the opening.
  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] int close();

  // Where the file stands, one call.
  [[nodiscard]] int write(ConstChunk bytes) const;
  [[nodiscard]] int read(MutableChunk bytes) const;
  [[nodiscard]] int readv(MutableChunk bytes) const;
  // At that place, one call; the vectored ones in pieces of `piece_bytes`.
  [[nodiscard]] int pwrite(ConstChunk bytes, std::uint64_t offset) const;
  [[nodiscard]] int pread(MutableChunk bytes, std::uint64_t offset) const;
  [[nodiscard]] int pwritev(ConstChunk bytes, std::uint64_t offset, std::size_t piece_bytes) const;
  [[nodiscard]] int preadv(MutableChunk bytes, std::uint64_t offset, std::size_t piece_bytes) const;
  // Until all is written; kShort where it took several calls that were all successful.
  [[nodiscard]] int write_loop(ConstChunk bytes) const;
  // What Python does with a file that it opened: fstat, TCGETS, lseek.
  [[nodiscard]] int look_as_python() const;

 private:
  int fd_;
  int error_;
};

// 0 or the errno of a call that returns -1 on failure.
[[nodiscard]] int outcome_of(long result);
// The first that is no success; later ones are done all the same.
[[nodiscard]] int first_failure(std::initializer_list<int> outcomes);

// All directories of that path, which others may be making, too.
[[nodiscard]] int make_directories(const std::string& path);
[[nodiscard]] int rename_file(const std::string& from, const std::string& to);
[[nodiscard]] int remove_file(const std::string& path);
[[nodiscard]] bool exists(const std::string& path);
// -1 where there is none.
[[nodiscard]] std::int64_t size_of(const std::string& path);
// All of a file, mapped for reading.
[[nodiscard]] int read_mapped(const std::string& path, std::uint64_t offset, MutableChunk bytes);

}  // namespace kvslot::testing
