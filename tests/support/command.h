// Runs a command as a user would and says what came of it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace kvslot::testing {

struct CommandResult {
  int exit_code = -1;  // 128 and the signal's number where one ended it
  std::string out;
  std::string err;
};

using Words = std::vector<std::string>;

// Runs to its end; `input` is its standard input.
[[nodiscard]] CommandResult run_command(const Words& words, const std::string& input = {});

// The same with /bin/sh -c; `arguments` are $1, $2, ...
[[nodiscard]] CommandResult run_shell(const std::string& script, const Words& arguments = {});

// A command under way. Killed and waited for when destroyed before wait().
class BackgroundCommand {
 public:
  explicit BackgroundCommand(const Words& words);
  ~BackgroundCommand();
  BackgroundCommand(const BackgroundCommand&) = delete;
  BackgroundCommand& operator=(const BackgroundCommand&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  // The next line that it prints, without its end; empty when it ended.
  [[nodiscard]] std::string read_line();
  [[nodiscard]] bool is_running();
  // Its exit code, as in CommandResult.
  int wait();

 private:
  pid_t pid_ = -1;
  int out_fd_ = -1;
};

// It returned 0 and complained about nothing.
void expect_ok(const CommandResult& result);

// A mount worked. Where it did not its directory goes, so that nothing that follows takes it for
// the store.
void expect_mounted(const CommandResult& mounted, const std::string& directory);

// It complained in one line of kvslot's that names the thing, says what is wrong, and what to do.
void expect_refused(const CommandResult& result, int exit_code, const std::string& thing);

// Why no test can mount here, or nothing.
[[nodiscard]] std::string why_no_mount();

#ifdef KVSLOT_BINARY
[[nodiscard]] inline CommandResult run_kvslot(Words words, const std::string& input = {}) {
  words.insert(words.begin(), KVSLOT_BINARY);
  return run_command(words, input);
}

// Mounts a store. No test fails because a busy machine kept the device waiting: a device of a test
// that answers late is none that is gone.
[[nodiscard]] inline CommandResult run_mount(const std::string& image, const std::string& directory,
                                             const std::string& options = "rw") {
  return run_kvslot({"mount", image, directory, "-o", "deadline=3600," + options});
}

// A store of 16 MiB with one key, `dir/key`. Returns the path.
inline std::string make_store(const std::string& path) {
  expect_ok(run_kvslot({"format", path, "--size", "16M"}));
  expect_ok(run_kvslot({"put", path, "dir/key"}, "value"));
  return path;
}
#endif

}  // namespace kvslot::testing
