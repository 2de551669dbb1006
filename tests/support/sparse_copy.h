// Copies an image without what it does not hold.
#pragma once

#include <string>

namespace kvslot::testing {

// By this process: a child would close the files of a mount whose daemon is stopped, and wait.
void copy_sparse(const std::string& from, const std::string& to);

}  // namespace kvslot::testing
