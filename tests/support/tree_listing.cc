// See tree_listing.h.
#include "tests/support/tree_listing.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace kvslot::testing {
namespace {

constexpr std::size_t kShownBytesMax = 60;        // of contents and attributes
constexpr off_t kReadBytesMax = off_t{64} << 20;  // of sparse giants only the size is compared

std::string shown(std::string_view bytes) {
  if (bytes.size() > kShownBytesMax) {
    return fmt::format("#{:016x}", std::hash<std::string_view>{}(bytes));
  }
  std::string text = "\"";
  for (const char byte : bytes) {
    const auto code = static_cast<unsigned char>(byte);
    if (code >= ' ' && code < 127 && byte != '\\') {
      text += byte;
    } else {
      text += fmt::format("\\x{:02x}", code);
    }
  }
  return text + "\"";
}

std::string shown_name(std::string_view name) {
  std::string text = shown(name);
  const auto is_plain = [](char byte) {
    return std::isalnum(static_cast<unsigned char>(byte)) != 0 ||
           std::strchr("._-+", byte) != nullptr;
  };
  return std::ranges::all_of(name, is_plain) ? std::string(name) : text;
}

std::string shown_error() { return fmt::format("({})", ::strerrorname_np(errno)); }

class Lister {
 public:
  explicit Lister(long now_seconds) : now_seconds_(now_seconds) {}

  // Takes the descriptor of a directory. Trees may be deeper than the stack of a thread allows.
  void list(int root_fd, const std::string& root) {
    enter(root_fd, root);
    while (!open_.empty()) {
      OpenDirectory& last = open_.back();
      if (last.next < last.names.size()) {
        list_entry(::dirfd(last.directory), last.names[last.next++], last.path);
      } else {
        ::closedir(last.directory);
        open_.pop_back();
      }
    }
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  struct OpenDirectory {
    DIR* directory;
    std::string path;
    std::vector<std::string> names;
    std::size_t next = 0;
  };

  void enter(int directory_fd, const std::string& path) {
    DIR* const directory = ::fdopendir(directory_fd);
    if (directory == nullptr) {
      text_ += path + shown_error() + "\n";
      return;
    }
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* const entry = ::readdir(directory)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    if (errno != 0) text_ += path + shown_error() + "\n";
    std::ranges::sort(names);
    open_.push_back({.directory = directory, .path = path, .names = std::move(names)});
  }

  // A directory is entered, and listed next.
  void list_entry(int directory_fd, const std::string& name, const std::string& parent) {
    const std::string path = parent + shown_name(name);
    struct stat status{};
    if (::fstatat(directory_fd, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      text_ += path + " " + shown_error() + "\n";
      return;
    }
    text_ += fmt::format("{} {:06o} {}:{} links {}", path, status.st_mode, status.st_uid,
                         status.st_gid, status.st_nlink);
    if (!S_ISDIR(status.st_mode)) text_ += fmt::format(" size {}", status.st_size);
    text_ += " a" + shown_time(status.st_atim) + " m" + shown_time(status.st_mtim);
    text_ += attributes_of(fmt::format("/proc/self/fd/{}/{}", directory_fd, name));
    if (S_ISLNK(status.st_mode)) text_ += " -> " + target_of(directory_fd, name);
    if (S_ISREG(status.st_mode)) text_ += " " + content_of(directory_fd, name, status.st_size);
    text_ += "\n";
    if (!S_ISDIR(status.st_mode)) return;
    const int fd =
        ::openat(directory_fd, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
      text_ += path + " " + shown_error() + "\n";
    } else {
      enter(fd, path + "/");
    }
  }

  [[nodiscard]] std::string shown_time(const timespec& time) const {
    if (time.tv_sec >= now_seconds_ && time.tv_sec <= now_seconds_ + kRunSecondsMax) return " now";
    return fmt::format(" {}.{:09}", time.tv_sec, time.tv_nsec);
  }

  static std::string attributes_of(const std::string& path) {
    std::string names(65536, '\0');
    const ssize_t size = ::llistxattr(path.c_str(), names.data(), names.size());
    if (size < 0) return errno == EOPNOTSUPP ? "" : " attributes " + shown_error();
    std::vector<std::string> lines;
    for (const char* name = names.data(); name < names.data() + size;
         name += std::strlen(name) + 1) {
      if (!std::string_view(name).starts_with("user.")) continue;
      std::string value(65536, '\0');
      const ssize_t length = ::lgetxattr(path.c_str(), name, value.data(), value.size());
      lines.push_back(fmt::format(
          " {}={}", name,
          length < 0 ? shown_error() : shown({value.data(), static_cast<std::size_t>(length)})));
    }
    std::ranges::sort(lines);
    return fmt::format("{}", fmt::join(lines, ""));
  }

  static std::string target_of(int directory_fd, const std::string& name) {
    std::string target(8192, '\0');
    const ssize_t size = ::readlinkat(directory_fd, name.c_str(), target.data(), target.size());
    return size < 0 ? shown_error() : shown({target.data(), static_cast<std::size_t>(size)});
  }

  static std::string content_of(int directory_fd, const std::string& name, off_t size) {
    if (size > kReadBytesMax) return "(large)";
    const int fd = ::openat(directory_fd, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return shown_error();
    std::string bytes;
    std::string part(1 << 17, '\0');
    ssize_t count = 0;
    while ((count = ::read(fd, part.data(), part.size())) > 0) {
      bytes.append(part, 0, static_cast<std::size_t>(count));
    }
    const std::string text = count < 0 ? shown_error() : shown(bytes);
    ::close(fd);
    return text;
  }

  static constexpr long kRunSecondsMax = 4 * 3600;
  long now_seconds_;
  std::string text_;
  std::vector<OpenDirectory> open_;  // from the root to the one that is listed
};

}  // namespace

std::string list_tree(const std::string& root, long now_seconds) {
  Lister lister(now_seconds);
  lister.list(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), "");
  return lister.take();
}

}  // namespace kvslot::testing
