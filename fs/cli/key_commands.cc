// `kvslot ls`, `get`, `put` and `rm` on an unmounted store. The step after is core's Store.
#include <fcntl.h>
#include <fmt/core.h>
#include <kvslot/store.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <span>

#include "fs/cli/commands.h"
#include "fs/cli/complaint.h"
#include "fs/cli/store_access.h"
#include "fs/cli/value_input.h"
#include "fs/text.h"

namespace kvslot::cli {
namespace {

constexpr std::size_t kPieceSizeBytes = 4 * kMiB;  // of a value that is printed

// A descriptor that is closed unless it is one of the standard ones.
class File {
 public:
  // `mode` of a file that is made, as far as the umask allows it.
  File(const std::string& path, int flags, int standard_fd, mode_t mode = 0)
      : fd_(path.empty() || path == "-" ? standard_fd
                                        : ::open(path.c_str(), flags | O_CLOEXEC, mode)),
        is_ours_(fd_ > STDERR_FILENO) {}
  ~File() {
    if (is_ours_) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

  // Closes; false where the file system reports only now that it could not keep the bytes.
  [[nodiscard]] bool finish() {
    if (!std::exchange(is_ours_, false)) return true;
    return ::close(fd_) == 0;
  }

 private:
  int fd_;
  bool is_ours_;
};

std::string_view name_of(const std::string& path, std::string_view standard) {
  return path.empty() || path == "-" ? standard : std::string_view(path);
}

// Ends a command that changed the store, or only read it.
int close_store(const std::string& path, Store& store, int exit_code) {
  const auto closed = store.close();
  return closed ? exit_code : complain(path, explain_store(closed.error()));
}

int print_key(Store& store, const ListedKey& key, bool is_long) {
  if (!is_long) {
    fmt::print("{}\n", escape_key(key.key));
    return kExitOk;
  }
  const auto info = store.volume().find(key.key);
  if (!info) return complain(key.key, explain_key(info.error()));
  const Attributes& attributes = info->attributes;
  fmt::print("{:04o}\t{}\t{}\t{}\t{}\t{}\n", attributes.mode, attributes.uid, attributes.gid,
             key.size_bytes, format_timestamp(attributes.mtime_ns), escape_key(key.key));
  return kExitOk;
}

bool write_all(int fd, std::span<const iovec> pieces) {
  for (const iovec& piece : pieces) {
    ConstBytes rest(static_cast<const std::byte*>(piece.iov_base), piece.iov_len);
    while (!rest.empty()) {
      const ssize_t count = ::write(fd, rest.data(), rest.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return false;
      rest = rest.subspan(static_cast<std::size_t>(count));
    }
  }
  return true;
}

int copy_out(Volume& volume, const NodeInfo& info, const TransferArguments& arguments, int fd) {
  for (std::uint64_t offset = 0; offset < info.size_bytes;) {
    const auto view = volume.read(info.node, offset, kPieceSizeBytes);
    if (!view) return complain(arguments.key, explain_key(view.error()));
    if (view->size_bytes == 0) return complain(arguments.key, "ended early; run 'kvslot fsck'");
    if (!write_all(fd, view->pieces)) {
      return complain(name_of(arguments.file, "standard output"),
                      fmt::format("{}; what was written is incomplete", errno_text(errno)));
    }
    offset += view->size_bytes;
  }
  return kExitOk;
}

// The first bytes of the value, so that a damaged one is found before the target is emptied.
int check_readable(Volume& volume, const NodeInfo& info, const std::string& key) {
  if (info.kind != NodeKind::kFile) return complain(key, "is no file; 'kvslot ls' lists files");
  const auto view = volume.read(info.node, 0, kPieceSizeBytes);
  return view ? kExitOk : complain(key, explain_key(view.error()));
}

int get_into_file(Volume& volume, const TransferArguments& arguments) {
  const auto info = volume.find(arguments.key);
  if (!info) return complain(arguments.key, explain_key(info.error()));
  if (const int checked = check_readable(volume, *info, arguments.key); checked != kExitOk) {
    return checked;
  }
  constexpr mode_t kPermissions = 0777;
  File file(arguments.file, O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO,
            info->attributes.mode & kPermissions);
  if (file.fd() < 0) {
    return complain(arguments.file,
                    fmt::format("cannot be written: {}; choose another file", errno_text(errno)));
  }
  const int copied = copy_out(volume, *info, arguments, file.fd());
  if (copied != kExitOk || file.finish()) return copied;
  return complain(arguments.file, fmt::format("{}; the file is incomplete", errno_text(errno)));
}

}  // namespace

int run_ls(const ListArguments& arguments) {
  const auto store = open_store(arguments.path, Access::kRead);
  if (!store) return complain(arguments.path, store.error());
  std::string prefix = arguments.prefix;
  while (prefix.ends_with('/')) prefix.pop_back();
  auto keys = (*store)->list(prefix);
  if (!keys && keys.error().code == Errc::kWrongKind) {  // the prefix is a key itself
    const auto info = (*store)->volume().find(prefix);
    if (info) keys = std::vector<ListedKey>{{.key = prefix, .size_bytes = info->size_bytes}};
  }
  if (!keys) return complain(arguments.prefix, explain_key(keys.error()));
  int exit_code = kExitOk;
  for (const ListedKey& key : *keys) {
    if (print_key(**store, key, arguments.is_long) != kExitOk) exit_code = kExitFailure;
  }
  return exit_code;
}

int run_get(const TransferArguments& arguments) {
  const auto store = open_store(arguments.path, Access::kRead);
  if (!store) return complain(arguments.path, store.error());
  return get_into_file((*store)->volume(), arguments);
}

int run_put(const TransferArguments& arguments) {
  const File file(arguments.file, O_RDONLY, STDIN_FILENO);
  const std::string_view source = name_of(arguments.file, "standard input");
  if (file.fd() < 0)
    return complain(source, fmt::format("{}; give another file", errno_text(errno)));
  const auto store = open_store(arguments.path, Access::kWrite);
  if (!store) return complain(arguments.path, store.error());
  const auto stored = store_value(**store, arguments.key, file.fd());
  int exit_code = kExitOk;
  if (!stored && stored.error().is_source) {
    const std::string reason = errno_text(stored.error().error.os_errno);
    exit_code = complain(source, fmt::format("cannot be read: {}; nothing was stored", reason));
  } else if (!stored) {
    exit_code = complain(arguments.key, explain_key(stored.error().error));
  }
  return close_store(arguments.path, **store, exit_code);
}

int run_rm(const std::string& path, const std::vector<std::string>& keys) {
  const auto store = open_store(path, Access::kWrite);
  if (!store) return complain(path, store.error());
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  const auto results = (*store)->remove_many(views);
  int exit_code = kExitOk;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!results[i]) exit_code = complain(keys[i], explain_key(results[i].error()));
  }
  return close_store(path, **store, exit_code);
}

}  // namespace kvslot::cli
