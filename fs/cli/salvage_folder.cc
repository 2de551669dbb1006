// Every step is relative to a descriptor and follows no symbolic link. A file is called
// NAME.partial until all of it is there.
#include "fs/cli/salvage_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include <cerrno>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "fs/cli/complaint.h"
#include "fs/cli/salvage_attributes.h"

namespace kvslot::cli {
namespace {

constexpr std::string_view kPartialSuffix = ".partial";

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// What concerns one name or file, and what ends the salvage.
std::unexpected<Error> fail_step(const char* step) {
  switch (errno) {
    case EFBIG:
    case ENAMETOOLONG:
      return fail(Errc::kTooLarge, step, errno);
    case EILSEQ:
    case EINVAL:
    case ELOOP:
    case ENOTDIR:
    case EISDIR:
    case EEXIST:
    case EPERM:
      return fail(Errc::kInvalid, step, errno);
    case ENOSPC:
    case EDQUOT:
      return fail(Errc::kNoSpace, step, errno);
    default:
      return fail(Errc::kIo, step, errno);
  }
}

// The name with the suffix, cut so that it stays a name.
std::string with_suffix(const std::string& name, std::string_view suffix) {
  return name.substr(0, std::min(name.size(), kNameSizeBytesMax - suffix.size())) +
         std::string(suffix);
}

bool is_empty(int fd) {
  DIR* const listing = ::fdopendir(::dup(fd));
  if (listing == nullptr) return false;
  int entries = 0;
  while (::readdir(listing) != nullptr) ++entries;
  ::closedir(listing);
  return entries <= 2;  // "." and ".."
}

class Folder final : public SalvageFolder {
 public:
  explicit Folder(Descriptor root) : root_(std::move(root)) {}

  Result<void> begin(const SalvagedFile& file) override {
    file_ = file;
    const std::vector<std::string> parent(file.path.begin(), file.path.end() - 1);
    if (file.kind == NodeKind::kDirectory) {
      if (auto ok = enter(file.path); !ok) return ok;
      directories_[file.path] = file;
      return {};
    }
    if (auto ok = enter(parent); !ok) return ok;
    if (file.kind == NodeKind::kSymlink) return make_symlink();
    return make_file();
  }

  Result<void> write(std::uint64_t offset_bytes, ConstBytes bytes) override {
    while (!bytes.empty()) {
      const ssize_t count =
          ::pwrite(target_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return fail_step("writing a value");
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      offset_bytes += static_cast<std::uint64_t>(count);
    }
    return {};
  }

  Result<void> end(Salvaged outcome) override {
    if (!target_) return {};
    note(restore_file(target_.get(), file_));
    if (::close(target_.release()) != 0) return fail_step("closing a value");
    if (outcome == Salvaged::kNothing) ::unlinkat(directory(), partial_name_.c_str(), 0);
    if (outcome != Salvaged::kWhole) return {};
    const std::string& name = file_.path.back();
    if (rename_to(name)) return {};
    if (errno == EEXIST && rename_to(own_name())) return {};
    return fail_step("naming a value");
  }

  // The deepest first: with its own mode a directory may not let us in any more, and what is done
  // in it changes its time.
  Result<void> finish() override {
    for (auto it = directories_.rbegin(); it != directories_.rend(); ++it) {
      if (auto ok = enter(it->first); !ok) return ok;
      note(restore_directory(directory(), it->second));
    }
    directory_ = {};
    entered_.clear();
    if (::syncfs(root_.get()) != 0) return fail_step("flushing the folder");
    return {};
  }

  [[nodiscard]] std::uint64_t changed_count() const override { return changed_; }

 private:
  void note(bool is_restored) { changed_ += is_restored ? 0 : 1; }
  [[nodiscard]] int directory() const { return directory_ ? directory_.get() : root_.get(); }
  // A name that is no other file's.
  [[nodiscard]] std::string own_name(std::string_view suffix = {}) const {
    return with_suffix(file_.path.back(), fmt::format(".{}{}", file_.object, suffix));
  }

  // Opens a directory of the folder, made as far as it is missing.
  Result<void> enter(const std::vector<std::string>& path) {
    if (path == entered_) return {};
    directory_ = {};
    entered_.clear();
    for (const std::string& component : path) {
      const bool is_new = ::mkdirat(directory(), component.c_str(), 0700) == 0;
      if (!is_new && errno != EEXIST) return fail_step("making its directory");
      Descriptor next(::openat(directory(), component.c_str(),
                               O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!next) return fail_step("a file has the name of its directory");
      directory_ = std::move(next);
      entered_.push_back(component);
      if (is_new) directories_.try_emplace(entered_);
    }
    return {};
  }

  Result<void> make_file() {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    for (const std::string& name :
         {with_suffix(file_.path.back(), kPartialSuffix), own_name(kPartialSuffix)}) {
      partial_name_ = name;
      target_ = Descriptor(
          ::openat(directory(), name.c_str(), kFlags, file_.attributes ? S_IRUSR | S_IWUSR : 0666));
      if (target_ || errno != EEXIST) break;
    }
    if (!target_) return fail_step("making the file");
    if (::ftruncate(target_.get(), static_cast<off_t>(file_.size_bytes)) == 0) return {};
    const auto failed = fail_step("giving the file its size");
    target_ = {};
    ::unlinkat(directory(), partial_name_.c_str(), 0);
    return failed;
  }

  Result<void> make_symlink() {
    for (const std::string& name : {file_.path.back(), own_name()}) {
      if (::symlinkat(file_.target.c_str(), directory(), name.c_str()) == 0) {
        note(restore_symlink(directory(), name.c_str(), file_));
        return {};
      }
      if (errno != EEXIST) break;
    }
    return fail_step("making the symbolic link");
  }

  bool rename_to(const std::string& name) {
    if (::renameat2(directory(), partial_name_.c_str(), directory(), name.c_str(),
                    RENAME_NOREPLACE) == 0)
      return true;
    if (errno != EINVAL) return false;  // the file system cannot refuse to replace: look first
    struct stat status{};
    if (::fstatat(directory(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
      errno = EEXIST;
      return false;
    }
    return ::renameat(directory(), partial_name_.c_str(), directory(), name.c_str()) == 0;
  }

  const Descriptor root_;
  Descriptor directory_;
  std::vector<std::string> entered_;
  std::map<std::vector<std::string>, SalvagedFile> directories_;  // that were made, by path
  std::uint64_t changed_ = 0;
  SalvagedFile file_;
  Descriptor target_;
  std::string partial_name_;
};

}  // namespace

std::expected<std::unique_ptr<SalvageFolder>, Complaint> SalvageFolder::open(
    const std::string& path) {
  const auto refused = [](const char* what) {
    return std::unexpected(
        Complaint(explain_folder({.code = Errc::kIo, .os_errno = errno, .step = what})));
  };
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) return refused("cannot be made");
  Descriptor root(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root) return refused("cannot be opened");
  if (::faccessat(root.get(), ".", W_OK | X_OK, AT_EACCESS) != 0)
    return refused("cannot be written to");
  if (!is_empty(root.get()))
    return std::unexpected(
        Complaint("holds files; give a folder that is empty or does not exist yet"));
  return std::make_unique<Folder>(std::move(root));
}

}  // namespace kvslot::cli
