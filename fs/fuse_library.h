// The libfuse that we build against, and what each of its versions can do. Included by every file
// that speaks libfuse, instead of its header.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <cstdint>

namespace kvslot {

// 3.18 and later hand over who may keep suid and sgid, take wide feature flags, and can talk to
// the kernel over io_uring.
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 18)
inline constexpr bool kLibraryIsRecent = true;
inline bool clears_privileges(const fuse_file_info& info) { return info.kill_suidgid != 0; }
inline bool is_over_uring(fuse_req_t request) { return fuse_req_is_uring(request); }
inline bool wants(fuse_conn_info& connection, std::uint64_t flag) {
  return fuse_set_feature_flag(&connection, flag);
}
inline void refuses(fuse_conn_info& connection, std::uint64_t flag) {
  fuse_unset_feature_flag(&connection, flag);
}
#else
inline constexpr bool kLibraryIsRecent = false;
inline bool clears_privileges(const fuse_file_info&) { return false; }
inline bool is_over_uring(fuse_req_t) { return false; }
inline bool wants(fuse_conn_info& connection, std::uint64_t flag) {
  if ((connection.capable & flag) == 0) return false;
  connection.want |= static_cast<unsigned>(flag);
  return true;
}
inline void refuses(fuse_conn_info& connection, std::uint64_t flag) {
  connection.want &= ~static_cast<unsigned>(flag);
}
#endif

}  // namespace kvslot
