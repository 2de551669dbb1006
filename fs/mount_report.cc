// Turns the mount's state into lines and numbers.
#include "fs/mount_report.h"

#include <fmt/format.h>
#include <unistd.h>

namespace kvslot {

namespace {

const char* word_for(ControlDirectory control) {
  switch (control) {
    case ControlDirectory::kHidden:
      return "hidden";
    case ControlDirectory::kVisible:
      return "visible";
    case ControlDirectory::kNone:
      return "none";
  }
  return "";
}

}  // namespace

ConfigLines config_lines(const MountOptions& options, const Transport& transport,
                         const MountContext& context) {
  const bool is_uring = context.is_uring;
  std::string reason = transport.reason;
  if (transport.is_uring && !is_uring) reason = "io_uring was offered and not taken up";
  return {{"pid", fmt::format("{}", ::getpid())},
          {"mount_point", options.mount_point},
          {"mount_options", options.text.empty() ? "defaults" : options.text},
          {"transport", is_uring ? "io_uring" : "/dev/fuse"},
          {"transport_reason", reason},
          {"libfuse_version", fuse_pkgversion()},
          {"durability", options.sync ? "sync" : "write-behind"},
          {"commit_seconds", fmt::format("{}", options.commit_seconds)},
          {"deadline_seconds", fmt::format("{}", options.deadline_seconds)},
          {"scrub_mib_per_second", fmt::format("{}", options.scrub_mib_per_second)},
          {"control_directory", word_for(options.control)},
          {"request_size_bytes_max", fmt::format("{}", kRequestBytesMax)}};
}

std::vector<Stat> mount_stats(Filesystem& filesystem) {
  std::uint64_t dirty_files = 0;
  std::uint64_t dirty_bytes = 0;
  std::uint64_t open_handles = 0;
  for (const LiveFileRef& file : filesystem.files().all()) {
    MutexLock lock(file->mutex);
    open_handles += file->handles;
    dirty_bytes += file->content.buffered_bytes();
    if (file->content.is_dirty()) ++dirty_files;
  }
  const FilesystemCounters& counters = filesystem.counters();
  const Publisher& publisher = filesystem.publisher();
  return {
      {"fuse_lookups", "LOOKUP requests and entries of READDIRPLUS", counters.lookups, true},
      {"fuse_getattrs", "GETATTR requests", counters.getattrs, true},
      {"fuse_setattrs", "SETATTR requests", counters.setattrs, true},
      {"fuse_creates", "CREATE, MKDIR, MKNOD and SYMLINK requests", counters.creates, true},
      {"fuse_removes", "UNLINK and RMDIR requests", counters.removes, true},
      {"fuse_renames", "RENAME requests", counters.renames, true},
      {"fuse_opens", "OPEN and CREATE requests", counters.opens, true},
      {"fuse_reads", "READ requests", counters.reads, true},
      {"fuse_writes", "WRITE requests", counters.writes, true},
      {"fuse_flushes", "FLUSH requests", counters.flushes, true},
      {"fuse_releases", "RELEASE requests", counters.releases, true},
      {"fuse_fsyncs", "FSYNC and FSYNCDIR requests", counters.fsyncs, true},
      {"fuse_readdirs", "READDIR and READDIRPLUS requests", counters.readdirs, true},
      {"fuse_getxattrs", "GETXATTR requests", counters.getxattrs, true},
      {"fuse_statfs", "STATFS requests", counters.statfs, true},
      {"fuse_forgets", "nodes that FORGET named", counters.forgets, true},
      {"writes_parked", "WRITE requests that waited for staging memory", counters.parked_writes,
       true},
      {"file_commits", "contents of files handed to the batcher", publisher.commits(), true},
      {"file_spills", "changes placed on the device before their commit", publisher.spills(), true},
      {"open_handles", "open file handles", open_handles, false},
      {"dirty_files", "files with content not stored yet", dirty_files, false},
      {"dirty_bytes", "staging memory of content not on its way yet", dirty_bytes, false},
  };
}

LiveNodeInfo live_node(Filesystem& filesystem, NodeId node) {
  LiveNodeInfo info;
  if (const auto status = filesystem.status(node)) info.size_bytes = status->info.size_bytes;
  if (const LiveFileRef file = filesystem.files().find(node)) {
    MutexLock lock(file->mutex);
    info.open_handles = file->handles;
    info.dirty_bytes = file->content.buffered_bytes();
    info.waiters = file->waiting_now.size();
  }
  return info;
}

}  // namespace kvslot
