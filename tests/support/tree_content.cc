// See tree_content.h.
#include "tests/support/tree_content.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

namespace kvslot::testing {
namespace {

std::optional<std::string> read_bytes(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::string bytes;
  std::string part(1 << 20, '\0');
  ssize_t count = 0;
  while ((count = ::read(fd, part.data(), part.size())) > 0) {
    bytes.append(part, 0, static_cast<std::size_t>(count));
  }
  ::close(fd);
  if (count < 0) return std::nullopt;
  return bytes;
}

}  // namespace

std::map<std::string, KeyState> TreeContent::states() const {
  std::map<std::string, KeyState> states;
  for (const auto& [path, bytes] : files) states[path] = KeyState::of(bytes);
  for (const std::string& path : directories) states[path] = KeyState::directory();
  return states;
}

TreeContent read_tree(const std::string& root) {
  TreeContent tree;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator at(root, error), end; !error && at != end;
       at.increment(error)) {
    const std::string path = at->path().string().substr(root.size() + 1);
    if (at->is_directory()) {
      tree.directories.push_back(path);
    } else if (auto bytes = read_bytes(at->path())) {
      tree.files[path] = std::move(*bytes);
    } else {
      tree.failures += fmt::format("{}: {}\n", path, std::strerror(errno));
    }
  }
  if (error) tree.failures += fmt::format("{}: {}\n", root, error.message());
  return tree;
}

}  // namespace kvslot::testing
