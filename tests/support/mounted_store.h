// A store that is formatted, mounted, and cleaned away, whatever becomes of the test.
// For tests/system only: it runs the command.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/command.h"
#include "tests/support/mount_guard.h"
#include "tests/support/temp_dir.h"

#ifdef KVSLOT_BINARY
namespace kvslot::testing {

// Nothing here sleeps: mount returns when the mount answers, unmount when the store is closed.
class MountedStore {
 public:
  explicit MountedStore(const std::string& size, const std::string& options = {})
      : image_(directory_.path("store.img")), guard_(directory_.path("mnt")), options_(options) {
    expect_ok(run_kvslot({"format", image_, "--size", size}));
    mount();
  }
  ~MountedStore() {
    if (is_mounted_) (void)run_kvslot({"unmount", guard_.path()});
  }
  MountedStore(const MountedStore&) = delete;
  MountedStore& operator=(const MountedStore&) = delete;

  void mount() {
    Words words = {"mount", image_, guard_.path()};
    if (!options_.empty()) words.insert(words.end(), {"-o", options_});
    expect_ok(run_kvslot(words));
    is_mounted_ = true;
  }
  void unmount() {
    expect_ok(run_kvslot({"unmount", guard_.path()}));
    is_mounted_ = false;
  }
  void remount() {
    unmount();
    mount();
  }
  // Ends the daemon as a crash would, and mounts again.
  void kill_and_remount() {
    EXPECT_EQ(
        run_shell("kill -9 $(sed -n 's/^pid\\t//p' \"$1/.kvslot/config\")", {root()}).exit_code, 0);
    mount();
  }
  void expect_sound() {
    unmount();
    const CommandResult checked = run_kvslot({"fsck", image_});
    EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  }

  [[nodiscard]] const std::string& root() const { return guard_.path(); }
  [[nodiscard]] std::string path(const std::string& name) const { return guard_.path(name); }
  [[nodiscard]] std::string outside(const std::string& name) const { return directory_.path(name); }

  // Runs a script with the mount as $M and a directory outside as $T; returns what it printed.
  std::string shell(const std::string& script) {
    const CommandResult result =
        run_shell("M=\"$1\" T=\"$2\"\n" + script, {root(), directory_.path()});
    EXPECT_EQ(result.exit_code, 0) << script << "\n" << result.out << result.err;
    return result.out;
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    EXPECT_TRUE(file.is_open()) << name;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // A number of `.kvslot/stats`.
  [[nodiscard]] std::uint64_t stat(const std::string& name) const {
    std::ifstream file(path(".kvslot/stats"));
    for (std::string line; std::getline(file, line);) {
      const std::size_t tab = line.find('\t');
      if (line.substr(0, tab) == name) return std::stoull(line.substr(tab + 1));
    }
    ADD_FAILURE() << "no stat " << name;
    return 0;
  }

 private:
  TempDir directory_;
  std::string image_;
  MountGuard guard_;
  std::string options_;
  bool is_mounted_ = false;
};

}  // namespace kvslot::testing
#endif  // KVSLOT_BINARY
