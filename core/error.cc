// Error codes become errnos and words. Called where errors leave the engine: fs/ and the command.
#include <kvslot/error.h>

#include <cerrno>

namespace kvslot {

int to_errno(const Error& error) {
  if (error.os_errno != 0) return error.os_errno;
  switch (error.code) {
    case Errc::kNotFound:
      return ENOENT;
    case Errc::kExists:
      return EEXIST;
    case Errc::kNoSpace:
      return ENOSPC;
    case Errc::kInvalid:
      return EINVAL;
    case Errc::kTooLarge:
      return EFBIG;
    case Errc::kWrongKind:
      return ENOTDIR;
    case Errc::kIo:
    case Errc::kCorrupt:
      return EIO;
    case Errc::kBusy:
      return EBUSY;
    case Errc::kReadOnly:
      return EROFS;
  }
  return EIO;  // A code from outside the enumeration.
}

const char* to_string(Errc code) {
  switch (code) {
    case Errc::kNotFound:
      return "not found";
    case Errc::kExists:
      return "exists already";
    case Errc::kNoSpace:
      return "no space";
    case Errc::kInvalid:
      return "invalid";
    case Errc::kTooLarge:
      return "too large";
    case Errc::kWrongKind:
      return "wrong kind";
    case Errc::kIo:
      return "input/output error";
    case Errc::kCorrupt:
      return "corrupt";
    case Errc::kBusy:
      return "busy";
    case Errc::kReadOnly:
      return "read-only";
  }
  return "unknown error";
}

}  // namespace kvslot
