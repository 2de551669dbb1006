// A small script of ordinary tools, and what comes of it in a directory.
// compared_tools.h runs them on a store and on ext4.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace kvslot::testing {

// What a store does in another way, and is allowed to: each `on_ext4` in the outcome there is an
// `on_store` here. One that is not found is a failure, so that none outlives its cause.
struct ExpectedDifference {
  std::string on_ext4;
  std::string on_store;
};

// Bash runs the script in a new directory, with
//   $T                   another one elsewhere, on the machine's own disk
//   $E                   another one on the ext4, wherever the script runs
//   try COMMAND...       runs it, and says its exit code where that is not 0
//   tried COMMAND...     runs it, and says `ok` or the last words of its complaint
//   as UID COMMAND...    runs it as that user, whose only group has the same number
//   bytes N COUNT        prints COUNT bytes, always the same for an N
//   py                   runs the script of Python at its standard input
//   program NAME...      runs one of tests/system/tools
//   $SEED, $ROUNDS       for what goes at random: $KVSLOT_TOOL_SEED and $KVSLOT_TOOL_ROUNDS, if set
struct ToolCase {
  std::string name;
  std::string tools;  // that it needs, by space
  std::string script;
  std::vector<ExpectedDifference> differences = {};
};

struct ToolPlace {
  std::string directory;  // $PWD, on the file system that is tried
  std::string outside;    // $T
  std::string on_ext4;    // $E
  std::string programs;   // tests/system/tools
};

// The first tool of the case that is not here; empty where all are.
[[nodiscard]] std::string missing_tool(const ToolCase& tools);

// Makes the directories and runs the script in them. Returns its exit code, what it printed (with
// the names of the directories in place of their paths) and the tree it leaves.
[[nodiscard]] std::string outcome_of(const ToolCase& tools, const ToolPlace& place);

// The tree as outcome_of shows it. `since_seconds` as in list_tree.
[[nodiscard]] std::string tree_of(const ToolPlace& place);

// What the outcome on the store has to be, or nothing where a difference is not found; `complaint`
// then says which.
[[nodiscard]] std::optional<std::string> expected_on_store(const ToolCase& tools,
                                                           std::string outcome_on_ext4,
                                                           std::string* complaint);

// Line by line, `-` what is expected and `+` what came; empty where they are the same.
[[nodiscard]] std::string difference_of(const std::string& expected, const std::string& actual);

}  // namespace kvslot::testing
