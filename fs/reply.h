// Requests and replies: the one place where errors become errnos, and statuses become stat.
// Called by the callbacks in fs/operations*.cc.
#pragma once

#include <kvslot/error.h>
#include <sys/stat.h>

#include <cstdint>
#include <string_view>

#include "fs/operations.h"
#include "fs/request.h"

namespace kvslot {

[[nodiscard]] inline MountContext& context_of(const Request& request) {
  return *static_cast<MountContext*>(fuse_req_userdata(request.raw()));
}
[[nodiscard]] inline Filesystem& filesystem(const Request& request) {
  return *context_of(request).filesystem;
}
[[nodiscard]] inline bool is_pseudo(fuse_ino_t node) { return node >= kPseudoNodeFirst; }
[[nodiscard]] inline NodeId node_id(fuse_ino_t node) {
  return NodeId{static_cast<std::uint32_t>(node)};
}
[[nodiscard]] inline OpenFile& handle_of(const fuse_file_info* info) {
  return *reinterpret_cast<OpenFile*>(info->fh);
}
[[nodiscard]] Caller caller_of(const Request& request);

[[nodiscard]] struct stat to_stat(const MountOptions& options, const FileStatus& status);
[[nodiscard]] struct stat to_stat(const PseudoNode& node);
[[nodiscard]] fuse_entry_param to_entry(const MountOptions& options, const FileStatus& status);
[[nodiscard]] fuse_entry_param to_entry(const PseudoNode& node);
[[nodiscard]] double attribute_timeout(const FileStatus& status);

void reply_error(const Request& request, const Error& error);
void reply_result(const Request& request, const Result<void>& result);
void reply_status(const Request& request, const FileStatus& status);
// Gives the hold of the entry back where the kernel did not take the reply.
void reply_entry(const Request& request, const FileStatus& status);
void reply_view(const Request& request, const ReadView& view);

// A callback that answers the request with success or the error.
[[nodiscard]] Done replier(const Request& request);

// ---- Of the control directory (fs/operations_pseudo.cc)
void pseudo_lookup(const Request& request, fuse_ino_t parent, std::string_view name);
void pseudo_lookup_control(const Request& request);
void pseudo_getattr(const Request& request, fuse_ino_t node);
void pseudo_setattr(const Request& request, fuse_ino_t node, int to_set);
void pseudo_open(const Request& request, fuse_ino_t node, const fuse_file_info& info);
void pseudo_read(const Request& request, std::size_t size, off_t offset,
                 const fuse_file_info& info);
void pseudo_write(const Request& request, std::string_view text, const fuse_file_info& info);
void pseudo_release(const Request& request, const fuse_file_info& info);
void pseudo_readdir(const Request& request, fuse_ino_t node, std::size_t size, off_t offset,
                    bool is_plus);

// ---- Callbacks by theme
void fill_file_operations(fuse_lowlevel_ops& operations);       // fs/operations_files.cc
void fill_directory_operations(fuse_lowlevel_ops& operations);  // fs/operations_directories.cc

}  // namespace kvslot
