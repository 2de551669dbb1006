// A directory tree as text: two trees are alike where their texts are.
#pragma once

#include <string>

namespace kvslot::testing {

// One line an entry, sorted: type, mode, owner, links, size, times, target, attributes of users and
// contents (large ones as a checksum). Left out is what two file systems need not have in common:
// numbers of inodes and blocks, sizes of directories. A time in the four hours from `now_seconds`
// on is `now`. Depth and length of paths do not matter; what cannot be read shows its errno.
[[nodiscard]] std::string list_tree(const std::string& root, long now_seconds);

}  // namespace kvslot::testing
