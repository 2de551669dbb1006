// What each file operation means: names, attributes, contents and commit points of a mounted
// store (fs/SEMANTICS.md). Holds no libfuse types.
//
// Step before: fs/operations. Step after: Volume for names, fs/live_files for contents,
// fs/publisher for commit points.
#pragma once

#include <kvslot/batcher.h>
#include <kvslot/error.h>
#include <kvslot/volume.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fs/file_status.h"
#include "fs/live_files.h"
#include "fs/mount_options.h"
#include "fs/parked_writes.h"
#include "fs/publisher.h"
#include "fs/range_set.h"
#include "fs/reader_pool.h"

namespace kvslot {

// One open handle.
struct OpenFile {
  LiveFileRef file;
  bool writes = false;
  bool syncs = false;  // changes of it are durable before they are answered
  // Guarded by the file's lock.
  std::uint64_t errors_seen = 0;  // of LiveFile::error_count
  // What was written through this handle and did not fit, until it does or the file is resized. The
  // kernel cuts long writes, and then says how much did fit; so close says it again.
  RangeSet missing;
  std::uint64_t resizes_seen = 0;  // of LiveFile::resizes, at that time
};

struct FilesystemCounters {
  std::atomic<std::uint64_t> lookups, getattrs, setattrs, creates, removes, renames, opens, reads,
      writes, flushes, releases, fsyncs, readdirs, getxattrs, statfs, forgets, parked_writes;
};

// Threads: thread-safe. Calls with a callback answer through it, once, on this thread or another;
// none of them waits for the device on its caller's thread, but a write whose bytes cannot be kept
// elsewhere (see ParkedWrites::make_room).
class Filesystem {
 public:
  using ReadDone = std::function<void(Result<ReadView> result)>;

  Filesystem(Volume& volume, Batcher& batcher, ReaderPool& pool, const MountOptions& options);
  ~Filesystem();
  Filesystem(const Filesystem&) = delete;
  Filesystem& operator=(const Filesystem&) = delete;

  // --- Names. A status returned by lookup and the makers carries one hold (see forget).
  Result<FileStatus> lookup(NodeId parent, std::string_view name);
  Result<FileStatus> make(NodeId parent, std::string_view name, NodeKind kind, std::uint32_t mode,
                          const Caller& caller, std::string_view target = {});
  Result<void> remove(NodeId parent, std::string_view name, RemoveKind kind);
  void rename(NodeId from, std::string_view from_name, NodeId to, std::string_view to_name,
              RenameMode mode, Done done);
  // Call back when changes of names and attributes, or of a size, may be answered: with -o sync,
  // when they are durable.
  void settle_names(Done done);
  void settle_size(NodeId node, Done done);
  void forget(NodeId node, std::uint64_t count);
  Result<std::vector<DirectoryEntry>> list(NodeId directory, std::uint64_t cookie,
                                           std::size_t count_max);
  // Whether the name is the control directory's.
  [[nodiscard]] static bool is_control_name(NodeId parent, std::string_view name);

  // --- Attributes.
  Result<FileStatus> status(NodeId node);
  Result<FileStatus> change_status(NodeId node, StatusChange change);
  Result<std::string> xattr(NodeId node, std::string_view name);
  Result<void> set_xattr(NodeId node, std::string_view name, std::string_view value,
                         Volume::XattrMode mode);
  Result<void> remove_xattr(NodeId node, std::string_view name);

  // --- Contents.
  Result<std::unique_ptr<OpenFile>> open(NodeId node, const OpenMode& mode);
  void read(const OpenFile& handle, std::uint64_t offset_bytes, std::size_t size_bytes,
            ReadDone done);
  void write(OpenFile& handle, std::uint64_t offset_bytes, ConstBytes bytes, const WriteMode& mode,
             Done done);
  void flush(OpenFile& handle, Done done);
  void fsync(OpenFile& handle, Done done);
  void release(std::unique_ptr<OpenFile> handle);
  // Commits a file that nobody has open, and calls back as for names.
  void commit(NodeId node, Done done);
  void sync_all(Done done) { publisher_.sync_all(std::move(done)); }
  enum class Allocate : std::uint8_t {
    kReserve,
    kReserveKeepSize,
    kPunchHole,
    kZero,
    kZeroKeepSize
  };
  void allocate(const OpenFile& handle, Allocate what, std::uint64_t offset_bytes,
                std::uint64_t length_bytes, Done done);
  // For a change of contents by somebody who may not keep suid and sgid over one.
  void drop_privileges(const OpenFile& handle) { drop_privileges(*handle.file); }
  Result<std::uint64_t> seek(const OpenFile& handle, std::uint64_t offset_bytes, bool data);
  // Copies at most size_bytes, calls back with how much it was.
  void copy(const OpenFile& from, std::uint64_t from_offset, const OpenFile& to,
            std::uint64_t to_offset, std::uint64_t size_bytes,
            std::function<void(Result<std::uint64_t>)> done);
  [[nodiscard]] ParkedWrites& parked() { return parked_; }

  [[nodiscard]] Volume& volume() { return volume_; }
  [[nodiscard]] const MountOptions& options() const { return options_; }
  [[nodiscard]] FilesystemCounters& counters() { return counters_; }
  [[nodiscard]] const FilesystemCounters& counters() const { return counters_; }
  [[nodiscard]] Publisher& publisher() { return publisher_; }
  [[nodiscard]] LiveFiles& files() { return files_; }

 private:
  using CopyDone = std::function<void(Result<std::uint64_t> copied)>;
  struct CopyRange {
    LiveFileRef from;
    std::uint64_t from_offset;
    LiveFileRef to;
    std::uint64_t to_offset;
    std::uint64_t size_bytes;
  };

  Result<FileStatus> live_status(LiveFile& file);  // of a dirty one, under its lock
  void settle_file(const LiveFileRef& file, Done done);
  LiveFileRef uncommitted(NodeId directory, std::string_view name, bool exchanges);
  void commit_first(std::vector<LiveFileRef> files, Done done);
  void rename_now(NodeId from, std::string_view from_name, NodeId to, std::string_view to_name,
                  RenameMode mode, const Done& done);
  Result<void> resize(NodeId node, const StatusChange& change);
  void drop_privileges(LiveFile& file);
  void forget_lost_privileges(NodeId node);
  void note_change(LiveFile& file, bool waits);
  void read_mixed(const LiveFileRef& file, std::uint64_t offset_bytes, std::size_t size_bytes,
                  ReadDone done);
  Result<void> read_pieces(LiveFile& file, const std::vector<DevicePiece>& pieces, Bytes target);
  Result<ReadView> read_now(const LiveFileRef& file, std::uint64_t offset_bytes,
                            std::size_t size_bytes);
  // `handle`: through which it is written, or null where nobody closes it for that.
  Result<void> write_now(LiveFile& file, OpenFile* handle, std::uint64_t offset_bytes,
                         ConstBytes bytes, LiveContent::Memory memory);
  bool lacks_a_write(const OpenFile& handle);
  Result<void> allocate_now(LiveFile& file, Allocate what, std::uint64_t offset_bytes,
                            std::uint64_t length_bytes, LiveContent::Memory memory);
  Result<std::uint64_t> copy_now(const CopyRange& range, LiveContent::Memory memory);
  void copy_later(const CopyRange& range, bool syncs, std::uint64_t patience, CopyDone done);
  void finish_write(const LiveFileRef& file, bool syncs, Result<void> result, Done done);
  void park(const LiveFileRef& file, bool syncs, ParkedWrite write, Done done);
  void note_parting(NodeId node);
  void try_again(const LiveFileRef& file);
  Done reporting_to(OpenFile& handle, Done done);

  Volume& volume_;
  Batcher& batcher_;
  ReaderPool& pool_;
  const MountOptions& options_;
  LiveFiles files_;
  Publisher publisher_;
  ParkedWrites parked_;
  FilesystemCounters counters_{};
};

}  // namespace kvslot
