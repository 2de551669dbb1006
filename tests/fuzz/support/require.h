// What every fuzz target uses: its input as bytes, and a promise that ends the run when broken.
#pragma once

#include <kvslot/types.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

namespace kvslot::testing {

// In every build, and told from the engine's own checks by its first words.
inline void require(bool promise, const char* what, std::string_view detail = {}) {
  if (promise) [[likely]]
    return;
  std::fprintf(stderr, "broken promise: %s: %.*s\n", what, static_cast<int>(detail.size()),
               detail.data());
  std::abort();
}

inline ConstBytes input_bytes(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}

inline std::string_view input_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace kvslot::testing
