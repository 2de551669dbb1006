// The reply to one READDIR or READDIRPLUS. Called by fs/operations_directories and _pseudo.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "fs/request.h"

namespace kvslot {

// Cookies of a directory stream: these, then those of the entries shifted past them.
inline constexpr off_t kCookieOfDot = 1;
inline constexpr off_t kCookieOfDotDot = 2;
inline constexpr off_t kCookieOfControl = 3;

// Threads: one thread at a time.
class EntryBuffer {
 public:
  EntryBuffer(const Request& request, std::size_t size_bytes, bool is_plus)
      : request_(request), bytes_(size_bytes), is_plus_(is_plus) {}

  // Adds an entry that carries no hold. False: it does not fit.
  bool add(std::string_view name, const struct stat& attributes, off_t cookie) {
    fuse_entry_param entry{};
    entry.attr = attributes;
    return add(name, entry, cookie);
  }

  // Adds an entry; in READDIRPLUS its hold becomes the kernel's. False: it does not fit.
  bool add(std::string_view name, const fuse_entry_param& entry, off_t cookie) {
    const std::string text(name);
    char* const at = bytes_.data() + used_;
    const std::size_t room = bytes_.size() - used_;
    const std::size_t size =
        is_plus_ ? fuse_add_direntry_plus(request_.raw(), at, room, text.c_str(), &entry, cookie)
                 : fuse_add_direntry(request_.raw(), at, room, text.c_str(), &entry.attr, cookie);
    if (size > room) return false;
    used_ += size;
    return true;
  }

  [[nodiscard]] bool is_empty() const { return used_ == 0; }
  void reply() { request_.answer(fuse_reply_buf, bytes_.data(), used_); }

 private:
  const Request& request_;
  std::vector<char> bytes_;
  std::size_t used_ = 0;
  bool is_plus_;
};

}  // namespace kvslot
