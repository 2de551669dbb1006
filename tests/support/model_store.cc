#include "tests/support/model_store.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/support/engine.h"

namespace kvslot::testing {

void ModelStore::put(const std::string& key, Value value) {
  for (std::size_t slash = key.find('/'); slash != std::string::npos;
       slash = key.find('/', slash + 1))
    nodes_.try_emplace(key.substr(0, slash), nullptr);
  nodes_[key] = std::move(value);
}

// Takes a node and all below it out, by their names relative to it.
std::map<std::string, ModelStore::Value> ModelStore::take(const std::string& key) {
  std::map<std::string, Value> taken;
  for (auto node = nodes_.lower_bound(key); node != nodes_.end() && node->first.starts_with(key);) {
    const std::string rest = node->first.substr(key.size());
    if (!rest.empty() && rest[0] != '/') {
      ++node;
      continue;
    }
    taken[rest] = node->second;
    node = nodes_.erase(node);
  }
  return taken;
}

void ModelStore::rename(const std::string& from, const std::string& to) {
  if (from == to) return;
  nodes_.erase(to);
  for (auto& [rest, value] : take(from)) nodes_[to + rest] = value;
}

void ModelStore::exchange(const std::string& a, const std::string& b) {
  if (a == b) return;
  const auto from_a = take(a);
  const auto from_b = take(b);
  for (const auto& [rest, value] : from_a) nodes_[b + rest] = value;
  for (const auto& [rest, value] : from_b) nodes_[a + rest] = value;
}

bool ModelStore::is_directory(const std::string& key) const {
  const auto node = nodes_.find(key);
  return node != nodes_.end() && node->second == nullptr;
}

bool ModelStore::is_empty(const std::string& directory) const {
  const auto below = nodes_.lower_bound(directory + "/");
  return below == nodes_.end() || !below->first.starts_with(directory + "/");
}

std::vector<std::string> ModelStore::files() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : nodes_)
    if (value != nullptr) names.push_back(key);
  return names;
}

std::vector<std::string> ModelStore::directories() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : nodes_)
    if (value == nullptr) names.push_back(key);
  return names;
}

std::string ModelStore::difference(const ModelStore& other) const {
  for (const auto& [key, value] : nodes_) {
    const auto found = other.nodes_.find(key);
    if (found == other.nodes_.end()) return key + " is missing";
    if ((value == nullptr) != (found->second == nullptr)) return key + " is of another kind";
    if (value != nullptr && *value != *found->second)
      return key + " has another value, of " + std::to_string(found->second->size()) +
             " bytes instead of " + std::to_string(value->size());
  }
  for (const auto& [key, value] : other.nodes_)
    if (!nodes_.contains(key)) return key + " should not be there";
  return {};
}

bool ModelStore::operator==(const ModelStore& other) const { return difference(other).empty(); }

namespace {

bool read_below(Volume& volume, NodeId directory, const std::string& prefix, ModelStore& model,
                std::set<std::string>* unreadable) {
  const auto entries = volume.list(directory, 0, SIZE_MAX);
  if (!entries) return false;
  for (const DirectoryEntry& entry : *entries) {
    const std::string key = prefix + entry.name;
    if (entry.kind == NodeKind::kDirectory) {
      model.make_directory(key);
      if (!read_below(volume, entry.node, key + '/', model, unreadable)) return false;
      continue;
    }
    const auto view = volume.read(entry.node, 0, SIZE_MAX);
    if (!view && unreadable != nullptr) {
      unreadable->insert(key);
      model.put(key, std::make_shared<const std::string>());
      continue;
    }
    if (!view) {
      ADD_FAILURE() << "reading " << key << ": " << view.error().step;
      return false;
    }
    model.put(key, std::make_shared<const std::string>(text_of(*view)));
  }
  return true;
}

}  // namespace

std::optional<ModelStore> ModelStore::read_from(Volume& volume, std::set<std::string>* unreadable) {
  ModelStore model;
  if (!read_below(volume, NodeId::kRoot, {}, model, unreadable)) return std::nullopt;
  return model;
}

}  // namespace kvslot::testing
