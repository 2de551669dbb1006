// The worked example of README.md is run as printed, and prints what it says. "…" in its output
// stands for anything.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/mount_guard.h"
#include "tests/support/mount_test.h"
#include "tests/support/temp_dir.h"

namespace kvslot::testing {
namespace {

struct Step {
  std::string command;
  std::string output;
};

std::vector<Step> worked_example() {
  std::ifstream readme(KVSLOT_SOURCE_DIR "/README.md");
  std::vector<Step> steps;
  std::string line;
  bool inside = false;
  while (std::getline(readme, line)) {
    if (line == "```console") {
      inside = true;
    } else if (line == "```") {
      inside = false;
    } else if (inside && line.starts_with("$ ")) {
      steps.push_back({line.substr(2), ""});
    } else if (inside && !steps.empty()) {
      steps.back().output += line + "\n";
    }
  }
  return steps;
}

// Whether `text` is `pattern` with any text in place of each "…".
bool matches(std::string_view text, std::string_view pattern) {
  constexpr std::string_view kAnything = "…";
  const std::size_t gap = pattern.find(kAnything);
  if (gap == std::string_view::npos) return text == pattern;
  if (!text.starts_with(pattern.substr(0, gap))) return false;
  const std::string_view rest = pattern.substr(gap + kAnything.size());
  for (std::size_t from = gap; from <= text.size(); ++from)
    if (matches(text.substr(from), rest)) return true;
  return false;
}

using Readme = MountTest;

TEST_F(Readme, TheWorkedExampleRunsAsPrinted) {
  const TempDir directory;
  const MountGuard mount(directory.path("m"));
  const std::vector<Step> steps = worked_example();
  ASSERT_GT(steps.size(), 10U);
  const std::string binary(KVSLOT_BINARY);
  const std::string path = binary.substr(0, binary.rfind('/'));
  for (const Step& step : steps) {
    const auto result =
        run_shell("cd \"$1\" && PATH=\"$2:$PATH\" && " + step.command, {directory.path(), path});
    EXPECT_EQ(result.exit_code, 0) << step.command << "\n" << result.err;
    EXPECT_TRUE(matches(result.out, step.output)) << "$ " << step.command << "\nprinted\n"
                                                  << result.out << "and README.md says\n"
                                                  << step.output;
  }
}

}  // namespace
}  // namespace kvslot::testing
