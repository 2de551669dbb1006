// See exercised_tree.h.
#include "tests/support/exercised_tree.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "tests/support/descriptor.h"
#include "tests/support/proc_files.h"

namespace kvslot::testing {
namespace {

constexpr std::size_t kNotesMax = 30;
constexpr std::size_t kEntriesMax = 60;  // of one tree: names meet each other
constexpr std::size_t kDepthMax = 5;

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

bool is_below(std::string_view path, std::string_view directory) {
  return path.size() > directory.size() && path.starts_with(directory) &&
         path[directory.size()] == '/';
}

}  // namespace

ExercisedTree::ExercisedTree(std::string root, unsigned number, std::uint64_t seed)
    : root_(std::move(root)), prefix_("t" + std::to_string(number) + "-"), random_(seed) {
  EXPECT_EQ(::mkdir(absolute(prefix_).c_str(), 0755), 0);
  content_.emplace(prefix_, std::nullopt);
}

void ExercisedTree::step() {
  using Step = void (ExercisedTree::*)();
  static constexpr Step kSteps[] = {&ExercisedTree::make_file,
                                    &ExercisedTree::make_file,
                                    &ExercisedTree::make_directory,
                                    &ExercisedTree::remove_file,
                                    &ExercisedTree::remove_directory,
                                    &ExercisedTree::rename,
                                    &ExercisedTree::rename,
                                    &ExercisedTree::rename,
                                    &ExercisedTree::exchange,
                                    &ExercisedTree::list,
                                    &ExercisedTree::look};
  const Step next = kSteps[pick(std::size(kSteps))];
  (this->*next)();
}

ExercisedTree::Content ExercisedTree::found_at(const std::string& root) {
  Content content;
  for (auto entry = std::filesystem::recursive_directory_iterator(root);
       entry != std::filesystem::recursive_directory_iterator(); ++entry) {
    const std::string path = entry->path().string().substr(root.size() + 1);
    if (path == ".kvslot") {
      entry.disable_recursion_pending();
    } else if (path != kShared) {
      content.emplace(path, entry->is_directory() ? std::nullopt
                                                  : std::optional(text_of(entry->path().string())));
    }
  }
  return content;
}

std::string ExercisedTree::pick_existing() {
  auto found = content_.begin();
  std::advance(found, static_cast<std::ptrdiff_t>(pick(content_.size())));
  return found->first;
}

// In one of its directories, or the shared one; sometimes a name that is taken.
std::string ExercisedTree::pick_new() {
  std::string directory(kShared);
  if (pick(3) != 0) {
    directory = pick_existing();
    while (!is_directory(directory)) directory = parent_of(directory);
    if (directory == kShared ||
        std::ranges::count(directory, '/') + 1 >= static_cast<std::ptrdiff_t>(kDepthMax)) {
      directory = prefix_;
    }
  }
  return directory + "/" + prefix_ + std::to_string(pick(20));
}

bool ExercisedTree::is_directory(const std::string& path) const {
  if (path == kShared) return true;
  const auto found = content_.find(path);
  return found != content_.end() && !found->second;
}

bool ExercisedTree::is_empty(const std::string& path) const {
  return std::ranges::none_of(content_,
                              [&](const auto& entry) { return is_below(entry.first, path); });
}

// What is at `from` and below goes to `to`, in `content`.
void ExercisedTree::move(const std::string& from, const std::string& to, Content& content) {
  for (const auto& [path, what] : content_) {
    if (path == from || is_below(path, from)) content[to + path.substr(from.size())] = what;
  }
}

void ExercisedTree::note(const std::string& what) {
  notes_.push_back(what);
  if (notes_.size() > kNotesMax) notes_.pop_front();
}

std::string ExercisedTree::history() const {
  std::string text = "the last steps:\n";
  for (const std::string& line : notes_) text += "  " + line + "\n";
  return text;
}

void ExercisedTree::expect_answer(int result, int error) {
  const int found = result < 0 ? errno : 0;
  EXPECT_EQ(found, error) << std::strerror(found) << " in place of " << std::strerror(error) << ", "
                          << history();
}

void ExercisedTree::make_file() {
  const std::string path = pick_new();
  if (content_.size() >= kEntriesMax && !content_.contains(path)) return;
  const bool is_new_only = pick(2) == 0;
  note((is_new_only ? "create " : "write ") + path);
  const std::string bytes = std::to_string(random_());
  const int fd = ::open(absolute(path).c_str(),
                        O_WRONLY | O_CREAT | O_CLOEXEC | (is_new_only ? O_EXCL : O_TRUNC), 0644);
  const bool is_taken = content_.contains(path);
  const int error = !is_taken ? 0 : is_new_only ? EEXIST : is_directory(path) ? EISDIR : 0;
  expect_answer(fd, error);
  if (fd < 0) return;
  expect_answer(
      ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) ? 0 : -1, 0);
  expect_answer(::close(fd), 0);
  content_[path] = bytes;
}

void ExercisedTree::make_directory() {
  const std::string path = pick_new();
  const bool is_taken = content_.contains(path);
  if (content_.size() >= kEntriesMax && !is_taken) return;
  note("mkdir " + path);
  expect_answer(::mkdir(absolute(path).c_str(), 0755), is_taken ? EEXIST : 0);
  content_.emplace(path, std::nullopt);
}

void ExercisedTree::remove_file() {
  const std::string path = pick(4) == 0 ? pick_new() : pick_existing();
  note("unlink " + path);
  const bool is_there = content_.contains(path);
  const int error = !is_there ? ENOENT : is_directory(path) ? EISDIR : 0;
  expect_answer(::unlink(absolute(path).c_str()), error);
  if (error == 0) content_.erase(path);
}

void ExercisedTree::remove_directory() {
  const std::string path = pick(4) == 0 ? pick_new() : pick_existing();
  if (path == prefix_) return;
  note("rmdir " + path);
  const int error = !content_.contains(path) ? ENOENT
                    : !is_directory(path)    ? ENOTDIR
                    : !is_empty(path)        ? ENOTEMPTY
                                             : 0;
  expect_answer(::rmdir(absolute(path).c_str()), error);
  if (error == 0) content_.erase(path);
}

void ExercisedTree::rename() {
  const std::string from = pick_existing();
  const std::string to = pick(2) == 0 ? pick_new() : pick_existing();
  if (from == prefix_ || to == prefix_) return;
  const bool is_new_only = pick(4) == 0;
  note((is_new_only ? "rename only where nothing is " : "rename ") + from + " to " + to);
  const bool is_taken = content_.contains(to);
  int error = 0;
  if (is_new_only && is_taken) {
    error = EEXIST;
  } else if (is_below(to, from)) {
    error = EINVAL;
  } else if (is_below(from, to)) {
    error = ENOTEMPTY;
  } else if (is_taken && from != to) {
    if (is_directory(from) && !is_directory(to)) error = ENOTDIR;
    if (!is_directory(from) && is_directory(to)) error = EISDIR;
    if (is_directory(from) && is_directory(to) && !is_empty(to)) error = ENOTEMPTY;
  }
  expect_answer(::renameat2(AT_FDCWD, absolute(from).c_str(), AT_FDCWD, absolute(to).c_str(),
                            is_new_only ? RENAME_NOREPLACE : 0),
                error);
  if (error != 0 || from == to) return;
  Content moved;
  move(from, to, moved);
  std::erase_if(content_, [&](const auto& entry) {
    return entry.first == from || is_below(entry.first, from);
  });
  for (auto& [path, what] : moved) content_[path] = what;
}

void ExercisedTree::exchange() {
  const std::string one = pick_existing();
  const std::string other = pick_existing();
  if (one == prefix_ || other == prefix_ || one == other) return;
  note("exchange " + one + " and " + other);
  const bool is_nested = is_below(one, other) || is_below(other, one);
  const int result = ::renameat2(AT_FDCWD, absolute(one).c_str(), AT_FDCWD, absolute(other).c_str(),
                                 RENAME_EXCHANGE);
  expect_answer(result, is_nested ? EINVAL : 0);
  if (is_nested) return;
  Content moved;
  move(one, other, moved);
  move(other, one, moved);
  std::erase_if(content_, [&](const auto& entry) {
    return entry.first == one || is_below(entry.first, one) || entry.first == other ||
           is_below(entry.first, other);
  });
  for (auto& [path, what] : moved) content_[path] = what;
}

// Each entry that is there all the time appears once, whatever others do beside.
void ExercisedTree::list() {
  std::string directory = pick(3) == 0 ? std::string(kShared) : pick_existing();
  if (!is_directory(directory)) directory = parent_of(directory);
  note("list " + directory);
  std::multiset<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(absolute(directory))) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix_)) found.insert(name);
  }
  std::multiset<std::string> expected;
  for (const auto& [path, what] : content_) {
    if (is_below(path, directory) && parent_of(path) == directory) {
      expected.insert(path.substr(directory.size() + 1));
    }
  }
  EXPECT_EQ(found, expected) << history();
}

void ExercisedTree::look() {
  const std::string path = pick(4) == 0 ? pick_new() : pick_existing();
  note("stat " + path);
  struct stat status{};
  const bool is_there = content_.contains(path);
  expect_answer(::lstat(absolute(path).c_str(), &status), is_there ? 0 : ENOENT);
  if (!is_there) return;
  EXPECT_EQ(S_ISDIR(status.st_mode), is_directory(path)) << path;
  if (const auto& text = content_.at(path)) {
    EXPECT_EQ(static_cast<std::size_t>(status.st_size), text->size()) << path;
    EXPECT_EQ(text_of(absolute(path)), *text) << path;
  }
}

}  // namespace kvslot::testing
