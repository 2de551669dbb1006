// A mounted store: opens the device, mounts, serves requests until unmounted, closes the store.
// Called by the command line (fs/cli); calls fs/operations.
#pragma once

#include <expected>
#include <memory>
#include <string>

#include "fs/mount_options.h"

namespace kvslot {

// One line for people: names the thing and the remedy.
using Complaint = std::string;

// Threads: start() and run() on one thread; shut_down() from any, also from a signal's thread.
class Session {
 public:
  // Opens the store at options.device_path, mounts it on options.mount_point (a dead mount of ours
  // there is detached first), and makes every thread and ring: call it after any fork. The mount
  // answers requests once run() is under way.
  static std::expected<std::unique_ptr<Session>, Complaint> start(const MountOptions& options);
  virtual ~Session() = default;

  // Serves until the file system is unmounted or shut_down() is called (SIGTERM, SIGINT and SIGHUP
  // do so); then commits what is dirty, flushes, checkpoints and closes. `on_ready` is called once,
  // when a request through the mount has been answered.
  //   returns  nothing, or why the store could not be closed cleanly
  virtual std::expected<void, Complaint> run(void (*on_ready)(void*), void* context) = 0;

  // Unmounts lazily and makes run() return.
  virtual void shut_down() = 0;
};

}  // namespace kvslot
