// A libfuse session and its mount: which transport, how it is mounted, how it is taken down.
// Called by fs/session.
#pragma once

#include <atomic>
#include <expected>
#include <memory>
#include <string>

#include "fs/fuse_library.h"
#include "fs/mount_options.h"
#include "fs/mount_place.h"
#include "fs/operations.h"

namespace kvslot {

struct Transport {
  bool is_uring = false;
  std::string reason;  // why this one
};

// What the options ask for, as far as library and kernel allow it. Never changes the kernel's
// switch.
[[nodiscard]] std::expected<Transport, std::string> choose_transport(TransportChoice choice);

// Detaches a dead mount (of a killed daemon) from the place.
[[nodiscard]] std::expected<void, std::string> detach_dead_mount(const MountPlace& place);

// Threads: make and serve on one thread; stop() from any.
class FuseMount {
 public:
  // Mounts. `context` is what the callbacks find; it may be completed until serve() is called.
  // `place` is options.mount_point, and stays as long as the mount.
  static std::expected<std::unique_ptr<FuseMount>, std::string> make(const MountOptions& options,
                                                                     const MountPlace& place,
                                                                     const Transport& transport,
                                                                     bool as_block_device,
                                                                     void* context);
  ~FuseMount();
  FuseMount(const FuseMount&) = delete;
  FuseMount& operator=(const FuseMount&) = delete;

  // Serves requests until unmounted or stopped. Returns 0 or an errno.
  int serve();
  // Unmounts lazily and makes serve() return.
  void stop();

 private:
  FuseMount(fuse_session* session, const MountPlace& place, bool is_uring)
      : session_(session), place_(place), is_uring_(is_uring) {}
  int serve_dev();
  int serve_uring();
  void unmount();

  fuse_session* session_;
  const MountPlace& place_;
  bool is_uring_;
  std::atomic<bool> is_serving_ = false;
  std::atomic<bool> has_served_ = false;
  std::atomic<bool> is_unmounted_ = false;
  pthread_t server_{};
};

}  // namespace kvslot
