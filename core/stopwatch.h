// How long the steps of a commit or an opening take.
#pragma once

#include <chrono>
#include <cstdint>

namespace kvslot {

// Microseconds between calls of lap().
class Stopwatch {
 public:
  std::uint64_t lap() {
    const auto now = std::chrono::steady_clock::now();
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now - last_).count();
    last_ = now;
    return static_cast<std::uint64_t>(us);
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace kvslot
