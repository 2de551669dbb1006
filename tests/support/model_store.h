// What a store should hold: a tree of names in memory, and the same tree as read from a Volume.
// A crash test keeps one copy of it for every operation and looks for the one that came back.
#pragma once

#include <kvslot/volume.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace kvslot::testing {

// Threads: one thread at a time.
class ModelStore {
 public:
  // A directory has no value.
  using Value = std::shared_ptr<const std::string>;

  void put(const std::string& key, Value value);  // makes missing directories
  void make_directory(const std::string& key) { nodes_[key] = nullptr; }
  void remove(const std::string& key) { nodes_.erase(key); }
  // Whatever is below moves along; an existing target is replaced.
  void rename(const std::string& from, const std::string& to);
  void exchange(const std::string& a, const std::string& b);

  [[nodiscard]] bool contains(const std::string& key) const { return nodes_.contains(key); }
  [[nodiscard]] bool is_directory(const std::string& key) const;
  [[nodiscard]] bool is_empty(const std::string& directory) const;
  [[nodiscard]] std::vector<std::string> files() const;
  [[nodiscard]] std::vector<std::string> directories() const;  // without the root
  [[nodiscard]] const std::string& value(const std::string& key) const { return *nodes_.at(key); }

  // Both hold the same names, and every value byte for byte.
  bool operator==(const ModelStore& other) const;
  // The first difference, for people.
  [[nodiscard]] std::string difference(const ModelStore& other) const;

  // What a volume holds, every value read; a failed read fails the test and gives nothing, or adds
  // the key to `unreadable`, whose value is then an empty one.
  [[nodiscard]] static std::optional<ModelStore> read_from(
      Volume& volume, std::set<std::string>* unreadable = nullptr);

 private:
  [[nodiscard]] std::map<std::string, Value> take(const std::string& key);
  std::map<std::string, Value> nodes_;
};

}  // namespace kvslot::testing
