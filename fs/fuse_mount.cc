// Makes, serves and takes down the mount.
#include "fs/fuse_mount.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <kvslot/mutex.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "fs/privileges.h"

namespace kvslot {

namespace {

constexpr unsigned kServerThreadsMax = 64;
constexpr unsigned kUringQueueDepth = 128;  // well above the requests that may wait for the device
constexpr int kWakeSignal = SIGUSR1;

// What libfuse said last: it reports errors by printing them only.
struct LastWords {
  Mutex mutex;
  std::string text GUARDED_BY(mutex);
};

LastWords& last_words() {
  static LastWords words;
  return words;
}

__attribute__((format(printf, 2, 0))) void keep_words(fuse_log_level level, const char* format,
                                                      va_list arguments) {
  if (level > FUSE_LOG_WARNING) return;
  std::vector<char> line(1024);
  const int length = std::vsnprintf(line.data(), line.size(), format, arguments);
  if (length <= 0) return;
  std::string text(line.data());
  while (!text.empty() && text.back() == '\n') text.pop_back();
  LastWords& words = last_words();
  MutexLock lock(words.mutex);
  words.text = std::move(text);
}

std::string words_or(std::string otherwise) {
  LastWords& words = last_words();
  MutexLock lock(words.mutex);
  return words.text.empty() ? std::move(otherwise) : words.text;
}

// Commas and backslashes in a value of `-o`, as libfuse wants them.
std::string escape_option(const std::string& value) {
  std::string escaped;
  for (const char letter : value) {
    if (letter == ',' || letter == '\\') escaped += '\\';
    escaped += letter;
  }
  return escaped;
}

std::string option_list(const MountOptions& options, const Transport& transport,
                        bool as_block_device) {
  std::string list = fmt::format("default_permissions,fsname={},subtype=kvslot,max_read={}",
                                 escape_option(options.device_path), kRequestBytesMax);
  if (as_block_device) list += ",blkdev,blksize=4096";
  if (options.allow_other) list += ",allow_other";
  if (options.read_only) list += ",ro";
  if (!options.kernel_options.empty()) list += "," + options.kernel_options;
  if (transport.is_uring) list += fmt::format(",io_uring,io_uring_q_depth={}", kUringQueueDepth);
  return list;
}

// Mounting a block device a second time shows the first mount again, and leaves the second one's
// connection without a file system.
bool is_connected(fuse_session* session) {
  pollfd state{.fd = fuse_session_fd(session), .events = POLLIN, .revents = 0};
  return ::poll(&state, 1, 0) < 0 || (state.revents & POLLERR) == 0;
}

}  // namespace

std::expected<Transport, std::string> choose_transport(TransportChoice choice) {
  if (choice == TransportChoice::kDev) return Transport{.is_uring = false, .reason = "asked for"};
  std::string reason;
  if (!kLibraryIsRecent) {
    reason = fmt::format("libfuse {} is older than 3.18", fuse_pkgversion());
  } else if (!KVSLOT_FUSE_RINGS_ARE_SOUND) {
    reason = fmt::format("the rings of libfuse {} may answer the wrong request (3.19 repairs it)",
                         fuse_pkgversion());
  } else {
    std::string value;
    std::ifstream file("/sys/module/fuse/parameters/enable_uring");
    if (!(file >> value))
      reason = "this kernel has no FUSE over io_uring";
    else if (value != "Y" && value != "1")
      reason =
          "/sys/module/fuse/parameters/enable_uring is N, and the administrator may write Y to it";
  }
  if (reason.empty()) {
    return Transport{.is_uring = true, .reason = "library and kernel allow it"};
  }
  if (choice == TransportChoice::kAuto) {
    return Transport{.is_uring = false, .reason = std::move(reason)};
  }
  return std::unexpected(
      fmt::format("option transport=uring: {}; transport=auto uses /dev/fuse", reason));
}

std::expected<void, std::string> detach_dead_mount(const MountPlace& place) {
  constexpr int kLayersMax = 16;  // of dead mounts, one over the other
  for (int layer = 0; layer < kLayersMax && place.is_dead(); ++layer) {
    if (!place.unmount_lazily()) {
      return std::unexpected(fmt::format(
          "{}: a dead mount is there and cannot be detached; run umount -l on it", place.name()));
    }
  }
  return {};
}

std::expected<std::unique_ptr<FuseMount>, std::string> FuseMount::make(const MountOptions& options,
                                                                       const MountPlace& place,
                                                                       const Transport& transport,
                                                                       bool as_block_device,
                                                                       void* context) {
  fuse_set_log_func(keep_words);
  fuse_args arguments{};
  const std::string list = option_list(options, transport, as_block_device);
  for (const char* const argument : {"kvslot", "-o", list.c_str()}) {
    fuse_opt_add_arg(&arguments, argument);
  }
  fuse_session* const session =
      fuse_session_new(&arguments, &fuse_operations(), sizeof(fuse_lowlevel_ops), context);
  fuse_opt_free_args(&arguments);
  if (session == nullptr) {
    return std::unexpected(fmt::format("{}: libfuse refuses the options {}: {}",
                                       options.mount_point, list, words_or("no reason given")));
  }
  const std::string& target = may_mount() ? place.path() : place.name();  // for fusermount3
  if (fuse_session_mount(session, target.c_str()) != 0) {
    fuse_session_destroy(session);
    return std::unexpected(fmt::format(
        "{}: cannot be mounted on: {}; is /dev/fuse there, and may this user mount, and "
        "start fusermount3?",
        options.mount_point, words_or("no reason given")));
  }
  if (!is_connected(session)) {
    place.unmount_lazily();
    fuse_session_destroy(session);
    return std::unexpected(fmt::format(
        "{}: is mounted already; use that mount, or unmount it with 'kvslot unmount DIR'",
        options.device_path));
  }
  return std::unique_ptr<FuseMount>(new FuseMount(session, place, transport.is_uring));
}

FuseMount::~FuseMount() {
  if (is_uring_ && has_served_) return;  // its ring threads end with the process
  if (is_connected(session_)) unmount();
  // Not fuse_session_unmount: while another mount namespace has a copy of the mount, it unmounts
  // once more, which it may not, and prints that.
  if (!kLibraryIsRecent) fuse_session_unmount(session_);  // frees what else leaks
  fuse_session_destroy(session_);                         // closes the connection
}

// Once, where it succeeds: what is there afterwards is somebody else's.
void FuseMount::unmount() {
  if (!is_unmounted_) is_unmounted_ = place_.unmount_lazily();
}

int FuseMount::serve_dev() {
  fuse_loop_config* const config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_clone_fd(config, 1);
  fuse_loop_cfg_set_max_threads(config, kServerThreadsMax);
  fuse_loop_cfg_set_idle_threads(config, kServerThreadsMax);
  const int result = fuse_session_loop_mt(session_, config);
  fuse_loop_cfg_destroy(config);
  if (result == -1) return EAGAIN;  // the first thread could not be started
  return result < 0 ? -result : 0;
}

// The rings have their own threads; /dev/fuse still brings INIT and FORGET. libfuse's loops free
// the rings when they end, while replies may still be on their way; this one leaves them alone.
int FuseMount::serve_uring() {
  fuse_buf buffer{};
  int result = 0;
  while (!fuse_session_exited(session_)) {
    pollfd readable{.fd = fuse_session_fd(session_), .events = POLLIN, .revents = 0};
    if (::poll(&readable, 1, -1) < 0) continue;  // interrupted: look whether to end
    const int size = fuse_session_receive_buf(session_, &buffer);
    if (size == -EINTR || size == -EAGAIN) continue;
    if (size <= 0) {
      result = -size;
      break;
    }
    fuse_session_process_buf(session_, &buffer);
  }
  std::free(buffer.mem);
  fuse_session_exit(session_);
  return result;
}

int FuseMount::serve() {
  struct sigaction action{};
  action.sa_handler = [](int) {};  // interrupts a wait, and no more
  ::sigaction(kWakeSignal, &action, nullptr);
  server_ = pthread_self();
  has_served_ = true;
  is_serving_ = true;
  const int result = is_uring_ ? serve_uring() : serve_dev();
  is_serving_ = false;
  // Where nothing was served, whoever asks whether the mount is dead would wait for an answer.
  const bool is_over = result == EAGAIN || place_.is_dead();  // dead: the connection was aborted
  if (is_over) unmount();
  return result;
}

void FuseMount::stop() {
  constexpr auto kWakeInterval = std::chrono::milliseconds(20);
  unmount();
  fuse_session_exit(session_);  // where files are still open, the connection outlives the mount
  while (is_serving_) {
    ::pthread_kill(server_, kWakeSignal);
    std::this_thread::sleep_for(kWakeInterval);
  }
}

}  // namespace kvslot
