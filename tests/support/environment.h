// Numbers that whoever runs a test may set: seeds to replay, rounds to go on longer.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace kvslot::testing {

inline std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace kvslot::testing
