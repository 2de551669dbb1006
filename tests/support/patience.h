// How long tests wait for what has to come: for ever where nothing else is wrong, as a busy machine
// may take its time, but no longer where it cannot come any more.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace kvslot::testing {

// Only a hang takes so long.
inline constexpr std::chrono::minutes kPatience{5};

// Yields until it is true, or the test has failed: what is waited for may then never come.
template <typename Condition>
void yield_until(const Condition& is_true) {
  while (!is_true() && !::testing::Test::HasFailure()) std::this_thread::yield();
}

}  // namespace kvslot::testing
