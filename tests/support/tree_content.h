// What is in a directory tree, read whole.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/support/crash_history.h"

namespace kvslot::testing {

// The tree below a directory: path from there to bytes, or to nothing for a directory. What cannot
// be read is left out and named in `failures`.
struct TreeContent {
  std::map<std::string, std::string> files;
  std::vector<std::string> directories;
  std::string failures;
  [[nodiscard]] std::map<std::string, KeyState> states() const;
};
[[nodiscard]] TreeContent read_tree(const std::string& root);

}  // namespace kvslot::testing
