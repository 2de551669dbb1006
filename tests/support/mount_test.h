// Suites that mount are skipped, with the reason, where that cannot be done. For tests/system only.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/support/command.h"
#include "tests/support/uring_transport.h"

#ifdef KVSLOT_BINARY
namespace kvslot::testing {

class MountTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_mount(); !why.empty()) GTEST_SKIP() << why;
  }
};

// The same suite over /dev/fuse and over io_uring:
//   INSTANTIATE_TEST_SUITE_P(Transports, SomeTest, kTransports, name_of_transport);
template <typename Fixture>
class OverTransports : public Fixture, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    Fixture::SetUp();
    if (::testing::Test::IsSkipped() || GetParam() != std::string("uring")) return;
    if (const std::string why = why_no_uring_transport(); !why.empty()) GTEST_SKIP() << why;
  }
  // What to mount with.
  [[nodiscard]] static std::string transport() { return std::string("transport=") + GetParam(); }
};

using TransportTest = OverTransports<MountTest>;

inline const auto kTransports = ::testing::Values("dev", "uring");

inline std::string name_of_transport(const ::testing::TestParamInfo<const char*>& tested) {
  return tested.param;
}

}  // namespace kvslot::testing
#endif  // KVSLOT_BINARY
