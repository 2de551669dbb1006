// A store that is formatted, mounted, and cleaned away, whatever becomes of the test.
// For tests/system only: it runs the command.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "tests/support/command.h"
#include "tests/support/control_files.h"
#include "tests/support/daemon_process.h"
#include "tests/support/descriptor.h"
#include "tests/support/mount_guard.h"
#include "tests/support/patience.h"
#include "tests/support/proc_files.h"
#include "tests/support/temp_dir.h"

#ifdef KVSLOT_BINARY
namespace kvslot::testing {

// Nothing here sleeps: mount returns when the mount answers, unmount when the store is closed.
class MountedStore {
 public:
  // `image`: where it lies, if not in a directory of its own.
  explicit MountedStore(const std::string& size, const std::string& options = "rw",
                        const std::string& image = {})
      : image_(image.empty() ? directory_.path("store.img") : image),
        guard_(directory_.path("mnt")),
        options_(options) {
    expect_ok(run_kvslot({"format", image_, "--size", size}));
    mount();
  }
  ~MountedStore() {
    if (is_mounted_) (void)run_kvslot({"unmount", guard_.path()});
  }
  MountedStore(const MountedStore&) = delete;
  MountedStore& operator=(const MountedStore&) = delete;

  void mount() {
    expect_mounted(run_mount(image_, root(), options_), root());
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
    DaemonProcess(root()).kill();
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
    EXPECT_EQ(::access(path(name).c_str(), R_OK), 0) << name;
    return text_of(path(name));
  }
  // A number of `.kvslot/stats`.
  [[nodiscard]] std::uint64_t stat(const std::string& name) const { return stat_of(root(), name); }
  // Until the space of removed files is free again: the kernel lets go of them in its own time.
  void wait_until_removed_files_are_gone() const {
    const Descriptor directory(root(), O_RDONLY | O_DIRECTORY);
    yield_until([&] {
      EXPECT_EQ(::fsync(directory), 0);
      return stat("nodes_unlinked") + stat("slots_doomed") == 0;
    });
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
