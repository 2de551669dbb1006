// Directories of a mount under random changes of names, beside a map that says what is there.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvslot::testing {

// Works in a directory of its own, and in one that others share, under names that only it uses.
// Each step makes, removes, renames (over others, in exchange, only where nothing is), replaces or
// lists; what the call answers must be what the model says, errors included.
// Threads: one thread at a time.
class ExercisedTree {
 public:
  // Paths from `root`, the mount; a directory has no content.
  using Content = std::map<std::string, std::optional<std::string>, std::less<>>;

  // `number`: whose tree it is. The shared directory exists.
  ExercisedTree(std::string root, unsigned number, std::uint64_t seed);

  void step();
  [[nodiscard]] const Content& content() const { return content_; }

  static constexpr std::string_view kShared = "shared";
  // What a mount has, without its control directory.
  static Content found_at(const std::string& root);

 private:
  [[nodiscard]] std::size_t pick(std::size_t limit) { return random_() % limit; }
  [[nodiscard]] std::string pick_existing();
  [[nodiscard]] std::string pick_new();
  [[nodiscard]] std::string absolute(const std::string& path) const { return root_ + "/" + path; }
  [[nodiscard]] bool is_directory(const std::string& path) const;
  [[nodiscard]] bool is_empty(const std::string& path) const;
  void move(const std::string& from, const std::string& to, Content& content);
  void note(const std::string& what);
  [[nodiscard]] std::string history() const;
  // The call returned so, with that errno (0: it succeeded).
  void expect_answer(int result, int error);

  void make_file();
  void make_directory();
  void remove_file();
  void remove_directory();
  void rename();
  void exchange();
  void list();
  void look();

  std::string root_;
  std::string prefix_;  // of every name
  std::mt19937_64 random_;
  Content content_;
  std::deque<std::string> notes_;
};

}  // namespace kvslot::testing
