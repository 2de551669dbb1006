// Errors as values. Every fallible call of kvslot returns Result<T>; nothing throws.
#pragma once

#include <cstdint>
#include <expected>

namespace kvslot {

enum class Errc : std::uint8_t {
  kNotFound,   // no such key, node, or attribute; also a node whose directory was removed
  kExists,     // the name is taken and the call was to be the first
  kNoSpace,    // the device, the reserve for checkpoints, or a table with a limit is full
  kInvalid,    // an argument that could never succeed: a bad name, option, or range
  kTooLarge,   // an argument over a documented limit
  kWrongKind,  // a directory where a file is needed, or the reverse, or one that is not empty
  kIo,         // the device refused a transfer or a flush, after the retries
  kCorrupt,    // bytes on the device are not what was written, or not of kvslot
  kBusy,       // somebody else holds the device, or the store is closing
  kReadOnly,   // opened read-only, or stopped after a failure that made the device untrusted
};

// What went wrong, without allocation.
struct Error {
  Errc code;
  int os_errno;      // errno of the failed call, or the one that fits best, or 0
  const char* step;  // a literal naming the step that failed: "superblock: checksum"
};

template <typename T>
using Result = std::expected<T, Error>;

[[nodiscard]] inline std::unexpected<Error> fail(Errc code, const char* step, int os_errno = 0) {
  return std::unexpected(Error{.code = code, .os_errno = os_errno, .step = step});
}

template <typename T>
[[nodiscard]] std::unexpected<Error> fail(const Result<T>& failed) {
  return std::unexpected(failed.error());
}

// The errno that a file-system caller expects: os_errno where the error has one, otherwise the
// one that stands for the code. The only place where codes become errnos.
[[nodiscard]] int to_errno(const Error& error);

// A word for people: "not found", "no space", ...
[[nodiscard]] const char* to_string(Errc code);

}  // namespace kvslot
