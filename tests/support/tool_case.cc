// See tool_case.h.
#include "tests/support/tool_case.h"

#include <fmt/format.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/command.h"
#include "tests/support/environment.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tree_listing.h"

namespace kvslot::testing {
namespace {

constexpr const char* kPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

constexpr const char* kVerbs = R"sh(
umask 022
try() { "$@"; local code=$?; [ $code -eq 0 ] || echo "exit $code: $*"; }
tried() {
  local words
  if words=$("$@" 2>&1 >/dev/null); then echo "ok: $*"; else echo "${words##*: }: $*"; fi
}
as() { local id=$1; shift; setpriv --reuid="$id" --regid="$id" --clear-groups -- "$@"; }
bytes() { seq "${1}000000" 1000000000 2>/dev/null | head -c "$2"; }
py() { python3 -c "from common import *
$(cat)"; }
program() { local name=$1; shift; python3 "$PYTHONPATH/$name.py" "$@"; }
)sh";

// A command that hangs in the file system is killed, and the test goes on.
constexpr const char* kPatienceSeconds = "600";

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

std::string normalised(std::string text, const ToolPlace& place) {
  replace_all(text, place.directory, "@");
  replace_all(text, place.outside, "$T");
  replace_all(text, place.on_ext4, "$E");
  return text;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

std::string missing_tool(const ToolCase& tools) {
  std::istringstream words(tools.tools);
  for (std::string word; words >> word;) {
    std::istringstream folders(kPath);
    bool is_found = false;
    for (std::string folder; std::getline(folders, folder, ':');) {
      is_found = is_found || ::access((folder + "/" + word).c_str(), X_OK) == 0;
    }
    if (!is_found) return word;
  }
  return {};
}

std::string outcome_of(const ToolCase& tools, const ToolPlace& place) {
  for (const std::string& path : {place.directory, place.outside, place.on_ext4}) {
    std::filesystem::create_directories(path);
  }
  const CommandResult result =
      run_command({"env",
                   "-i",
                   "-C",
                   place.directory,
                   std::string("PATH=") + kPath,
                   "LC_ALL=C.UTF-8",
                   "TZ=UTC",
                   "HOME=" + place.outside,
                   "T=" + place.outside,
                   "E=" + place.on_ext4,
                   "PYTHONPATH=" + place.programs,
                   "PYTHONDONTWRITEBYTECODE=1",
                   fmt::format("SEED={}", number_from("KVSLOT_TOOL_SEED", 1)),
                   fmt::format("ROUNDS={}", number_from("KVSLOT_TOOL_ROUNDS", 2)),
                   "timeout",
                   "-s",
                   "KILL",
                   kPatienceSeconds,
                   "bash",
                   "-c",
                   kVerbs + tools.script});
  return normalised(fmt::format("exit {}\n---- output\n{}---- errors\n{}", result.exit_code,
                                result.out, result.err),
                    place) +
         tree_of(place);
}

std::string tree_of(const ToolPlace& place) {
  return "---- tree\n" + list_tree(place.directory, std::time(nullptr) - 3600);
}

std::optional<std::string> expected_on_store(const ToolCase& tools, std::string outcome_on_ext4,
                                             std::string* complaint) {
  for (const auto& [on_ext4, on_store] : tools.differences) {
    if (outcome_on_ext4.find(on_ext4) == std::string::npos) {
      *complaint =
          "ext4 does not show the expected difference\n" + on_ext4 + "\nbut\n" + outcome_on_ext4;
      return std::nullopt;
    }
    replace_all(outcome_on_ext4, on_ext4, on_store);
  }
  return outcome_on_ext4;
}

std::string difference_of(const std::string& expected, const std::string& actual) {
  if (expected == actual) return {};
  const TempDir directory;
  write_file(directory.path("ext4"), expected);
  write_file(directory.path("store"), actual);
  return run_command({"diff", "-a", "-U", "2", "--label", "ext4", "--label", "store",
                      directory.path("ext4"), directory.path("store")})
      .out;
}

}  // namespace kvslot::testing
