// How long tests wait for what has to come: for ever where nothing else is wrong, as a busy machine
// may take its time, but no longer where it cannot come any more.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace kvslot::testing {

// Only a hang takes so long.
inline constexpr std::chrono::minutes kPatience{5};

// Yields until it is true, or the test has failed: what is waited for may then never come. The test
// fails where it hangs.
template <typename Condition>
void yield_until(const Condition& is_true) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!is_true() && !::testing::Test::HasFailure()) {
    if (std::chrono::steady_clock::now() > end) ADD_FAILURE() << "what is waited for does not come";
    std::this_thread::yield();
  }
}

}  // namespace kvslot::testing
