// What to say of a store whose device lost its end. Called where one could not be opened.
#pragma once

#include <optional>
#include <string>

namespace kvslot {

// "is shorter than when it was formatted: ... of ... bytes", and what to do; nothing where the
// device is as long as it was, or cannot be looked at.
[[nodiscard]] std::optional<std::string> explain_cut_off(const std::string& device_path);

}  // namespace kvslot
