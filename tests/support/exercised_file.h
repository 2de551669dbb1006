// One file of a mount under random system calls, beside a string that says what it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <string>

#include "tests/support/descriptor.h"

namespace kvslot::testing {

// Each step does one of: writes (at any offset, from several pieces, appended, direct, through a
// mapping), reads of the same kinds, truncation by descriptor or path, fallocate in each mode,
// copies within the file, SEEK_DATA and SEEK_HOLE, fsync, dropped pages, closing and opening,
// another name, a replaced file. What is read differs from the model: the test fails, and says the
// last steps.
// Threads: one thread at a time.
class ExercisedFile {
 public:
  static constexpr std::size_t kSizeMaxBytes = 600'000;

  // The file `path` does not exist yet.
  ExercisedFile(std::string path, std::uint64_t seed);

  void step();
  // All of it, by read and through a mapping; the size, and that the blocks account for it.
  void expect_whole();
  // Opens it again after its file system was mounted anew.
  void reopen();
  // Nothing stays open.
  void close() {
    fd_ = -1;
    handles_.clear();
  }

 private:
  struct Range {
    std::size_t offset;
    std::size_t size;
  };
  [[nodiscard]] std::size_t pick(std::size_t limit) { return random_() % limit; }
  [[nodiscard]] Range pick_range(std::size_t size_limit);
  [[nodiscard]] std::string pick_bytes(std::size_t size);
  [[nodiscard]] int open_again(int flags);
  void note(const char* what) { note(what, {.offset = 0, .size = 0}); }
  void note(const char* what, Range range);
  [[nodiscard]] std::string history() const;
  void put(std::size_t offset, const std::string& bytes);
  void expect_bytes(const char* how, Range range, const std::string& bytes);

  void write();
  void write_pieces();
  void append();
  void write_direct();
  void write_mapped();
  void read();
  void read_direct();
  void read_mapped();
  void truncate();
  void allocate();
  void copy();
  void seek();
  void synchronise();
  void forget_pages();
  void change_handle();
  void rename();
  void replace();

  std::string path_;
  std::mt19937_64 random_;
  std::string model_;
  std::deque<std::string> notes_;
  std::deque<Descriptor> handles_;  // the last one is used
  int fd_ = -1;
};

}  // namespace kvslot::testing
