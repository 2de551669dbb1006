// Names and attributes. Contents: filesystem_content.cc.
#include "fs/filesystem.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <limits>
#include <utility>

#include "fs/pseudo_tree.h"
#include "fs/text.h"

namespace kvslot {

namespace {

constexpr std::uint32_t kPermissionBits = 07777;

Result<void> check_name(std::string_view name) {
  if (name.size() > kNameSizeBytesMax) {
    return fail(Errc::kTooLarge, "name over 255 bytes", ENAMETOOLONG);
  }
  return {};
}

constexpr std::string_view kUserPrefix = "user.";
constexpr std::string_view kOwnPrefix = "user.kvslot.";

Result<void> check_xattr_name(std::string_view name) {
  if (name == kUserPrefix) return fail(Errc::kInvalid, "xattr: no name", EINVAL);
  return {};
}

}  // namespace

std::uint32_t without_privileges(std::uint32_t mode) {
  constexpr std::uint32_t kGroupMayRun = S_ISGID | S_IXGRP;
  mode &= ~std::uint32_t{S_ISUID};
  return (mode & kGroupMayRun) == kGroupMayRun ? mode & ~std::uint32_t{S_ISGID} : mode;
}

TimestampNs to_timestamp(const timespec& time) {
  constexpr TimestampNs kNsPerSecond = 1'000'000'000;
  constexpr auto kMax = std::numeric_limits<TimestampNs>::max();
  constexpr auto kMin = std::numeric_limits<TimestampNs>::min();
  if (time.tv_sec >= kMax / kNsPerSecond) return kMax;
  if (time.tv_sec <= kMin / kNsPerSecond) return kMin;
  return time.tv_sec * kNsPerSecond + time.tv_nsec;
}

Filesystem::Filesystem(Volume& volume, Batcher& batcher, ReaderPool& pool,
                       const MountOptions& options)
    : volume_(volume),
      batcher_(batcher),
      pool_(pool),
      options_(options),
      files_(volume),
      publisher_(volume, batcher, pool, files_),
      parked_(volume, publisher_, pool) {
  publisher_.on_memory([this] { parked_.wake(); });
  files_.on_end([this] { parked_.wake(); });  // the slots of a removed one are free now
}

Filesystem::~Filesystem() {
  files_.on_end([] {});
}

bool Filesystem::is_control_name(NodeId parent, std::string_view name) {
  return parent == NodeId::kRoot && name == kControlDirectoryName;
}

// ---- Names

Result<FileStatus> Filesystem::lookup(NodeId parent, std::string_view name) {
  ++counters_.lookups;
  if (auto good = check_name(name); !good) return fail(good);
  const auto info = volume_.lookup(parent, name, true);
  if (!info) return fail(info);
  return status(info->node);  // held: it is there
}

Result<FileStatus> Filesystem::make(NodeId parent, std::string_view name, NodeKind kind,
                                    std::uint32_t mode, const Caller& caller,
                                    std::string_view target) {
  ++counters_.creates;
  if (auto good = check_name(name); !good) return fail(good);
  if (is_control_name(parent, name)) {
    if (options_.control == ControlDirectory::kNone) {
      return fail(Errc::kInvalid, "create: .kvslot is reserved", EPERM);
    }
    return fail(Errc::kExists, "create: .kvslot");
  }
  Attributes attributes{.mode = mode & kPermissionBits, .uid = caller.uid, .gid = caller.gid};
  attributes.atime_ns = attributes.mtime_ns = attributes.ctime_ns = wall_clock_ns();
  const auto directory = volume_.stat(parent);
  if (!directory) return fail(directory);
  if ((directory->attributes.mode & S_ISGID) != 0) {
    attributes.gid = directory->attributes.gid;
    if (kind == NodeKind::kDirectory) attributes.mode |= S_ISGID;
  }
  const auto info = volume_.create(parent, name, kind, attributes, target, true);
  if (!info) return fail(info);
  return FileStatus{.info = *info, .allocated_bytes = info->allocated_bytes};
}

Result<void> Filesystem::remove(NodeId parent, std::string_view name, RemoveKind kind) {
  ++counters_.removes;
  if (auto good = check_name(name); !good) return good;
  if (is_control_name(parent, name)) {
    return fail(Errc::kInvalid, "remove: .kvslot is reserved", EPERM);
  }
  auto removed = volume_.remove(parent, name, kind);
  if (removed) parked_.note_parting();
  return removed;
}

void Filesystem::rename(NodeId from, std::string_view from_name, NodeId to,
                        std::string_view to_name, RenameMode mode, Done done) {
  ++counters_.renames;
  for (const std::string_view name : {from_name, to_name}) {
    if (auto good = check_name(name); !good) return done(good);
  }
  if (is_control_name(from, from_name) || is_control_name(to, to_name)) {
    return done(fail(Errc::kInvalid, "rename: .kvslot is reserved", EPERM));
  }
  const bool exchanges = mode == RenameMode::kExchange;
  std::vector<LiveFileRef> files;
  if (auto file = uncommitted(from, from_name, exchanges)) files.push_back(std::move(file));
  if (auto file = exchanges ? uncommitted(to, to_name, true) : nullptr) {
    files.push_back(std::move(file));
  }
  if (files.empty()) return rename_now(from, from_name, to, to_name, mode, done);
  commit_first(std::move(files),
               [this, from, from_name = std::string(from_name), to, to_name = std::string(to_name),
                mode, done = std::move(done)](const Result<void>& committed) {
                 if (!committed) return done(committed);
                 rename_now(from, from_name, to, to_name, mode, done);
               });
}

// The file of that name if a rename must not be recorded before what it holds: after a crash in
// between, its new name would have an older value of it, or none. A file that was never committed
// takes its new name with its first commit (core/names.cc); but not where that one is under way and
// has less of it than there is now; and when it moves on from a name that it took from another
// file, or changes places with one, then that one moves now.
LiveFileRef Filesystem::uncommitted(NodeId directory, std::string_view name, bool exchanges) {
  const auto info = volume_.lookup(directory, name);
  if (!info || info->kind != NodeKind::kFile) return nullptr;
  LiveFileRef file = files_.find(info->node);
  if (file == nullptr) return nullptr;
  MutexLock lock(file->mutex);
  // What a rewrite that did not fit left must not become the value: the old one moves along.
  if (!file->missing.empty()) return nullptr;
  // Asked again: a commit that ended since has stored it.
  const auto now = volume_.lookup(directory, name);
  const bool comes_later = now && !now->stored && !file->content.is_partly_in_flight() &&
                           !file->has_replaced && !exchanges;
  return file->content.is_dirty() && !comes_later ? file : nullptr;
}

// Calls back when all of them are committed, or with the first error. The batcher's committer does
// not: what is called may have to wait for it.
void Filesystem::commit_first(std::vector<LiveFileRef> files, Done done) {
  if (files.empty()) return done({});
  const LiveFileRef file = std::move(files.back());
  files.pop_back();
  publisher_.commit(file, {.until = CommitWaiter::Until::kWritten,
                           .done = [this, files = std::move(files),
                                    done = std::move(done)](Result<void> committed) {
                             pool_.post([this, files, done, committed] {
                               if (!committed) return done(committed);
                               commit_first(files, done);
                             });
                           }});
}

void Filesystem::rename_now(NodeId from, std::string_view from_name, NodeId to,
                            std::string_view to_name, RenameMode mode, const Done& done) {
  const bool replaces = volume_.lookup(to, to_name).has_value();
  if (auto renamed = volume_.rename(from, from_name, to, to_name, mode); !renamed) {
    return done(renamed);
  }
  if (replaces) parked_.note_parting();
  const auto info = volume_.lookup(to, to_name);
  const LiveFileRef file = info ? files_.find(info->node) : nullptr;
  if (file != nullptr && replaces) {
    MutexLock lock(file->mutex);
    file->has_replaced = true;
  }
  settle_file(file, done);
}

void Filesystem::settle_file(const LiveFileRef& file, Done done) {
  if (!options_.sync || file == nullptr || is_incomplete(*file))
    return settle_names(std::move(done));
  publisher_.commit(file, {.until = CommitWaiter::Until::kDurable, .done = std::move(done)});
}

void Filesystem::settle_names(Done done) {
  if (!options_.sync) return done({});
  batcher_.barrier(std::move(done));
}

void Filesystem::settle_size(NodeId node, Done done) {
  settle_file(files_.find(node), std::move(done));
}

void Filesystem::forget(NodeId node, std::uint64_t count) {
  ++counters_.forgets;
  if (node != NodeId::kRoot) volume_.release(node, count);
  parked_.wake();
}

Result<std::vector<DirectoryEntry>> Filesystem::list(NodeId directory, std::uint64_t cookie,
                                                     std::size_t count_max) {
  return volume_.list(directory, cookie, count_max);
}

// ---- Attributes

// The live file first, the volume after it: asked the other way round, a commit that ends in
// between would have the stored state of before it count as settled.
Result<FileStatus> Filesystem::status(NodeId node) {
  if (const LiveFileRef file = files_.find(node)) {
    MutexLock lock(file->mutex);
    if (file->content.is_dirty()) return live_status(*file);
  }
  const auto info = volume_.stat(node);
  if (!info) return fail(info);
  return FileStatus{.info = *info, .allocated_bytes = info->allocated_bytes};
}

Result<FileStatus> Filesystem::live_status(LiveFile& file) {
  file.mutex.assert_held();
  const auto info = volume_.stat(file.node);
  if (!info) return fail(info);
  FileStatus result{.info = *info, .allocated_bytes = file.content.allocated_bytes()};
  result.is_settled = false;
  result.info.size_bytes = file.content.size_bytes();
  if (file.written_at) {
    result.info.attributes.mtime_ns = *file.written_at;
    result.info.attributes.ctime_ns = *file.written_at;
  }
  return result;
}

Result<void> Filesystem::resize(NodeId node, const StatusChange& change) {
  const std::uint64_t size_bytes = *change.size_bytes;
  auto pinned = files_.pin(node);
  if (!pinned) return fail(pinned);
  const Pin file(files_, std::move(*pinned));
  bool has_writer = false;
  {
    MutexLock lock(file->mutex);
    if (auto done = file->content.truncate(size_bytes); !done) return done;
    file->is_only_emptied = false;
    file->missing.clear();
    ++file->resizes;
    has_writer = file->writers > 0;
    // Whoever empties the file that it has open goes on to write it, as after O_TRUNC. Whoever does
    // so by its path wants it empty.
    if (size_bytes == 0)
      file->is_rewrite = change.through_writer && file->content.stored_size_bytes() > 0;
  }
  note_change(*file, true);
  if (change.clears_privileges) drop_privileges(*file);
  if (!has_writer) publisher_.commit(file.ref());  // no close will come
  return {};
}

void Filesystem::forget_lost_privileges(NodeId node) {
  const LiveFileRef file = files_.find(node);
  if (!file) return;
  MutexLock lock(file->mutex);
  file->has_lost_privileges = false;
}

Result<FileStatus> Filesystem::change_status(NodeId node, StatusChange change) {
  ++counters_.setattrs;
  if (change.size_bytes) {
    if (auto done = resize(node, change); !done) {
      return fail(done);
    }
  }
  AttributeChange& attributes = change.attributes;
  const bool sets_times = attributes.atime_ns || attributes.mtime_ns;
  const bool changes_owner = attributes.uid || attributes.gid;
  if (changes_owner && !attributes.mode) {
    const auto info = volume_.stat(node);
    if (!info) return fail(info);
    if (info->kind == NodeKind::kFile) attributes.mode = without_privileges(info->attributes.mode);
  }
  // A chown that leaves both owner and group as they are asks for nothing, and is a change.
  if (attributes.mode || changes_owner || sets_times || !change.size_bytes) {
    attributes.ctime_ns = wall_clock_ns();
    if (const LiveFileRef file = files_.find(node)) {
      MutexLock lock(file->mutex);
      if (file->written_at && !attributes.mtime_ns) attributes.mtime_ns = file->written_at;
      file->written_at.reset();
    }
    if (auto done = volume_.set_attributes(node, attributes); !done) return fail(done);
    // Only now: a write in between would count the new bits as cleared.
    if (attributes.mode) forget_lost_privileges(node);
  }
  return status(node);
}

Result<std::string> Filesystem::xattr(NodeId node, std::string_view name) {
  ++counters_.getxattrs;
  if (auto ok = check_xattr_name(name); !ok) return fail(ok);
  if (!name.starts_with(kUserPrefix)) return fail(Errc::kNotFound, "getxattr", ENODATA);
  if (!name.starts_with(kOwnPrefix)) {
    auto value = volume_.xattr(node, name);
    if (!value && value.error().code == Errc::kNotFound) {
      return fail(Errc::kNotFound, "getxattr", ENODATA);
    }
    return value;
  }
  const std::string_view which = name.substr(kOwnPrefix.size());
  const auto info = volume_.stat(node);
  if (!info) return fail(info);
  if (info->kind != NodeKind::kFile) return fail(Errc::kNotFound, "getxattr", ENODATA);
  const auto record = volume_.inspector().node(node);
  if (!record) return fail(record);
  if (which == "checksum") return fmt::format("{:016x}", record->checksum);
  if (which == "sequence") return fmt::format("{}", record->sequence);
  if (which != "slots") return fail(Errc::kNotFound, "getxattr", ENODATA);
  std::string text;
  for (const SlotRun& run : record->runs) {
    text +=
        fmt::format("{}{}+{}", text.empty() ? "" : ",", std::to_underlying(run.first), run.count);
  }
  return text;
}

Result<void> Filesystem::set_xattr(NodeId node, std::string_view name, std::string_view value,
                                   Volume::XattrMode mode) {
  if (auto ok = check_xattr_name(name); !ok) return ok;
  if (!name.starts_with(kUserPrefix)) {
    return fail(Errc::kInvalid, "setxattr: only user.*", EOPNOTSUPP);
  }
  if (name.starts_with(kOwnPrefix)) return fail(Errc::kInvalid, "setxattr: user.kvslot.*", EPERM);
  auto done = volume_.set_xattr(node, name, value, mode);
  if (!done && done.error().code == Errc::kNotFound) {
    return fail(Errc::kNotFound, "setxattr", ENODATA);
  }
  return done;
}

Result<void> Filesystem::remove_xattr(NodeId node, std::string_view name) {
  if (auto ok = check_xattr_name(name); !ok) return ok;
  if (!name.starts_with(kUserPrefix)) {
    return fail(Errc::kInvalid, "removexattr: only user.*", EOPNOTSUPP);
  }
  if (name.starts_with(kOwnPrefix)) {
    return fail(Errc::kInvalid, "removexattr: user.kvslot.*", EPERM);
  }
  auto done = volume_.remove_xattr(node, name);
  if (!done && done.error().code == Errc::kNotFound) {
    return fail(Errc::kNotFound, "removexattr", ENODATA);
  }
  return done;
}

}  // namespace kvslot
