// What the check says of a store, for tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/admin.h>

#include <string>
#include <vector>

namespace kvslot::testing {

inline std::string text_of(const CheckReport& report) {
  std::string text;
  for (const CheckFinding& finding : report.findings)
    text += (finding.is_error ? "error: " : "remark: ") + finding.what + "\n";
  return text;
}

inline std::vector<std::string> errors_of(const CheckReport& report) {
  std::vector<std::string> errors;
  for (const CheckFinding& finding : report.findings)
    if (finding.is_error) errors.push_back(finding.what);
  return errors;
}

inline std::vector<std::string> remarks_of(const CheckReport& report) {
  std::vector<std::string> remarks;
  for (const CheckFinding& finding : report.findings)
    if (!finding.is_error) remarks.push_back(finding.what);
  return remarks;
}

inline CheckReport check(Device& device, bool verify_values = true) {
  const auto report = check_device(device, {.verify_values = verify_values, .on_progress = {}});
  EXPECT_TRUE(report.has_value()) << (report ? "" : report.error().step);
  if (!report) return {};
  EXPECT_EQ(report->damaged, !errors_of(*report).empty());
  for (const CheckFinding& finding : report->findings) {
    EXPECT_EQ(finding.what.find('\n'), std::string::npos) << "one line each";
  }
  return *report;
}

// The one thing that is wrong.
inline void expect_error(Device& device, const std::string& part) {
  const CheckReport report = check(device);
  EXPECT_THAT(errors_of(report), ::testing::ElementsAre(::testing::HasSubstr(part)))
      << text_of(report);
}

}  // namespace kvslot::testing
