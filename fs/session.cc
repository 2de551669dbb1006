// Opens the store, mounts it, serves it, closes it.
#include "fs/session.h"

#include <fmt/format.h>
#include <kvslot/batcher.h>
#include <kvslot/deadline.h>
#include <kvslot/device.h>
#include <kvslot/volume.h>
#include <kvslot/watched_device.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <future>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "fs/cut_off.h"
#include "fs/filesystem.h"
#include "fs/fuse_mount.h"
#include "fs/mount_place.h"
#include "fs/mount_report.h"
#include "fs/operations.h"
#include "fs/privileges.h"
#include "fs/pseudo_tree.h"
#include "fs/reader_pool.h"

namespace kvslot {

namespace {

constexpr std::size_t kReaderThreadsMax = 16;
constexpr std::size_t kInlineReadersMax = 32;  // of the serving threads, on /dev/fuse
constexpr std::size_t kPseudoThreadsMax = 4;
constexpr unsigned kReadaheadKib = 4096;

bool is_block_device(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISBLK(status.st_mode);
}

std::string explain(const std::string& path, const Error& error) {
  std::string text = fmt::format("{}: {}", path, error.step);
  if (error.os_errno != 0) text += fmt::format(": {}", std::strerror(error.os_errno));
  switch (error.code) {
    case Errc::kNotFound:
      return text + "; make a store with 'kvslot format'";
    case Errc::kBusy:
      return text + "; it is mounted or open elsewhere, unmount it there first";
    case Errc::kCorrupt:
      return text + (text.find(';') != std::string::npos
                         ? ""
                         : "; 'kvslot fsck' says what is wrong, 'kvslot fsck --salvage DIR' takes "
                           "out what is whole");
    default:
      return text + (error.os_errno == ETIMEDOUT
                         ? "; see to the device, or give it more time with -o deadline=SECONDS"
                         : "");
  }
}

// Blocks the signals that end a mount, in this thread and those it starts.
class SignalMask {
 public:
  SignalMask() {
    sigemptyset(&ours_);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&ours_, signal);
    pthread_sigmask(SIG_BLOCK, &ours_, &before_);
  }
  ~SignalMask() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalMask(const SignalMask&) = delete;
  SignalMask& operator=(const SignalMask&) = delete;
  [[nodiscard]] const sigset_t& ours() const { return ours_; }

 private:
  sigset_t ours_{};
  sigset_t before_{};
};

class MountedSession final : public Session {
 public:
  explicit MountedSession(const MountOptions& options)
      : options_(options), place_(options.mount_point) {}
  ~MountedSession() override { (void)finish(); }

  std::expected<void, Complaint> open();
  std::expected<void, Complaint> run(void (*on_ready)(void*), void* context) override;
  void shut_down() override;
  // Commits, flushes and closes, once; later calls return what the first one found.
  std::expected<void, Complaint> finish();

 private:
  [[nodiscard]] std::chrono::seconds deadline() const {
    return std::chrono::seconds(options_.deadline_seconds);
  }
  // Opening looks at the device and reads from it, so it may hang as any other call.
  [[nodiscard]] Result<std::unique_ptr<Device>> open_device(const FileDeviceOptions& options) const;
  std::expected<void, Complaint> open_volume(bool shares_device);
  void tell_if_cut_off() const;
  void start_threads();
  std::expected<void, Complaint> serve(void (*on_ready)(void*), void* context);
  std::expected<void, Complaint> close_store();
  PseudoTreeHooks hooks();
  void tell_when_ready(void (*on_ready)(void*), void* context);
  void wait_for_signals();

  const MountOptions options_;
  const MountPlace place_;
  SignalMask signals_;
  Transport transport_;
  std::unique_ptr<Volume> volume_;
  WatchedDevice* device_ = nullptr;  // the volume's
  std::unique_ptr<Batcher> batcher_;
  std::unique_ptr<ReaderPool> pool_;
  std::unique_ptr<ReaderPool> pseudo_pool_;
  std::unique_ptr<Filesystem> filesystem_;
  std::unique_ptr<PseudoTree> pseudo_tree_;
  MountContext context_;
  std::unique_ptr<FuseMount> mount_;
  std::atomic<bool> is_ending_ = false;
  std::atomic<bool> is_answered_ = false;

  std::mutex finish_mutex_;
  std::optional<std::expected<void, Complaint>> finished_;
};

Result<std::unique_ptr<Device>> MountedSession::open_device(
    const FileDeviceOptions& options) const {
  auto opened = answer_in_time(deadline(), [path = options_.device_path, options] {
    return open_file_device(path, options);
  });
  if (!opened) return fail(Errc::kIo, "device: open: no answer in time", ETIMEDOUT);
  return std::move(*opened);
}

std::expected<void, Complaint> MountedSession::open_volume(bool shares_device) {
  FileDeviceOptions device_options{.engine = options_.engine, .read_only = options_.read_only};
  device_options.exclusive = !shares_device;
  auto device = open_device(device_options);
  if (!device) return std::unexpected(explain(options_.device_path, device.error()));
  VolumeOptions volume_options{.read_only = options_.read_only, .inline_checkpoints = false};
  volume_options.staging_size_bytes = options_.staging_bytes;
  auto watched =
      std::make_unique<WatchedDevice>(std::move(*device), WatchOptions{.deadline = deadline()});
  device_ = watched.get();
  auto volume = Volume::open(std::move(watched), volume_options);
  if (!volume) {
    device_ = nullptr;
    std::optional<std::string> cut_off;
    if (volume.error().code == Errc::kCorrupt) {
      cut_off = answer_in_time(deadline(), [path = options_.device_path] {
                  return explain_cut_off(path);
                }).value_or(std::nullopt);
    }
    return std::unexpected(cut_off ? fmt::format("{}: {}", options_.device_path, *cut_off)
                                   : explain(options_.device_path, volume.error()));
  }
  volume_ = std::move(*volume);
  tell_if_cut_off();
  volume_->inspector().on_stopped([path = options_.device_path](const FaultRecord& fault) {
    const std::string line = fmt::format(
        "kvslot: {}: {} ({}); unmount it, see to the device, and "
        "mount it again",
        path, fault.action, std::strerror(fault.os_errno));
    ::syslog(LOG_DAEMON | LOG_ERR, "%s", line.c_str());
    std::fputs((line + "\n").c_str(), stderr);  // where it cannot be printed, nobody throws
  });
  return {};
}

// What can be read of it is shown, and who mounts it should know.
void MountedSession::tell_if_cut_off() const {
  if (volume_->geometry().size_bytes <= device_->info().size_bytes) return;
  for (const FaultRecord& fault : volume_->inspector().faults())
    if (fault.operation == "device")
      fmt::print(stderr, "kvslot: {}: {}\n", options_.device_path, fault.action);
}

void MountedSession::start_threads() {
  batcher_ = std::make_unique<Batcher>(
      *volume_, BatcherOptions{.commit_interval_ms = options_.commit_seconds * 1000});
  const std::size_t inline_max = transport_.is_uring ? 0 : kInlineReadersMax;
  pool_ = std::make_unique<ReaderPool>(
      ReaderPoolOptions{.threads_max = kReaderThreadsMax, .inline_max = inline_max});
  pseudo_pool_ = std::make_unique<ReaderPool>(
      ReaderPoolOptions{.threads_max = kPseudoThreadsMax, .inline_max = 0});
  filesystem_ = std::make_unique<Filesystem>(*volume_, *batcher_, *pool_, options_);
  pseudo_tree_ = std::make_unique<PseudoTree>(*volume_, hooks());
  context_.filesystem = filesystem_.get();
  context_.pseudo_tree = pseudo_tree_.get();
  context_.pseudo_pool = pseudo_pool_.get();
  context_.reader_pool = pool_.get();
  context_.on_destroy = [this] { (void)finish(); };
}

std::expected<void, Complaint> MountedSession::open() {
  if (auto detached = detach_dead_mount(place_); !detached) return detached;
  auto transport = choose_transport(options_.transport);
  if (!transport) return std::unexpected(transport.error());
  transport_ = std::move(*transport);
  // Where the path itself hangs, so will its opening.
  const bool as_block_device = answer_in_time(deadline(), [path = options_.device_path] {
                                 return is_block_device(path);
                               }).value_or(false);
  if (as_block_device) {
    // Mounted as fuseblk, the kernel claims the device for the mount, which it cannot while we
    // claim it too; so this only finds out whether it is free.
    const auto probe = open_device({.read_only = true});
    if (!probe) return std::unexpected(explain(options_.device_path, probe.error()));
  } else if (auto opened = open_volume(false); !opened) {
    return opened;
  }
  auto mounted = FuseMount::make(options_, place_, transport_, as_block_device, &context_);
  if (!mounted) return std::unexpected(mounted.error());
  mount_ = std::move(*mounted);
  // The kernel's claim now keeps others off the device. Nothing is served before serve().
  if (as_block_device) {
    if (auto opened = open_volume(true); !opened) {
      mount_.reset();
      return opened;
    }
  }
  device_->retire_threads();
  give_up_capabilities();  // threads inherit what is left, so all of them are started after it
  start_threads();
  return {};
}

PseudoTreeHooks MountedSession::hooks() {
  return {
      .names_are_private = options_.allow_other,
      .config = [this] { return config_lines(options_, transport_, context_); },
      .stats = [this] { return mount_stats(*filesystem_); },
      .live_node = [this](NodeId node) { return live_node(*filesystem_, node); },
      .deadline_seconds =
          [this] {
            return static_cast<std::uint32_t>(
                std::chrono::duration_cast<std::chrono::seconds>(device_->deadline()).count());
          },
      .set_deadline_seconds =
          [this](std::uint32_t seconds) { device_->set_deadline(std::chrono::seconds(seconds)); },
      .scrub_bytes_per_second = options_.scrub_mib_per_second * kMiB};
}

void MountedSession::tell_when_ready(void (*on_ready)(void*), void* context) {
  const bool is_answering = place_.answers();
  is_answered_ = true;
  if (!is_answering) return;
  place_.raise_readahead(kReadaheadKib);
  if (on_ready != nullptr && !is_ending_) on_ready(context);
}

void MountedSession::wait_for_signals() {
  int signal = 0;
  sigset_t waited = signals_.ours();
  sigaddset(&waited, SIGUSR2);
  while (sigwait(&waited, &signal) != 0 || (signal == SIGUSR2 && !is_ending_)) {
  }
  if (!is_ending_) shut_down();
}

std::expected<void, Complaint> MountedSession::run(void (*on_ready)(void*), void* context) try {
  return serve(on_ready, context);
} catch (const std::exception&) {  // no thread or no memory is to be had: nothing stays mounted
  (void)finish();
  mount_.reset();
  (void)detach_dead_mount(place_);  // while there were threads, fusermount3 may have found no room
  throw;
}

std::expected<void, Complaint> MountedSession::serve(void (*on_ready)(void*), void* context) {
  sigset_t wake;
  sigemptyset(&wake);
  sigaddset(&wake, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &wake, nullptr);
  std::thread signal_thread([this] { wait_for_signals(); });
  const auto end_signal_thread = [&] {
    is_ending_ = true;
    pthread_kill(signal_thread.native_handle(), SIGUSR2);
    signal_thread.join();
  };
  std::thread ready_thread;
  try {
    ready_thread = std::thread([&] { tell_when_ready(on_ready, context); });
  } catch (const std::system_error&) {
    end_signal_thread();
    throw;
  }
  const int error = mount_->serve();
  end_signal_thread();
  auto finished = finish();
  mount_.reset();  // whoever still waits for an answer gets ENOTCONN
  if (is_answered_)
    ready_thread.join();
  else
    ready_thread.detach();  // a mount that never answered: it may wait until the process ends
  if (!finished) return finished;
  if (error == EAGAIN) throw std::system_error(EAGAIN, std::generic_category());
  if (error != 0) {
    return std::unexpected(fmt::format("{}: the connection to the kernel failed: {}",
                                       options_.mount_point, std::strerror(error)));
  }
  return {};
}

void MountedSession::shut_down() {
  if (filesystem_ != nullptr) filesystem_->parked().end_waiting();
  if (mount_ != nullptr) mount_->stop();
}

std::expected<void, Complaint> MountedSession::close_store() {
  if (volume_ == nullptr) return {};
  std::expected<void, Complaint> outcome;
  // The end of a mount is waited for by whoever unmounts, so it has a bound in any case.
  if (device_->deadline() == std::chrono::seconds(0)) device_->set_deadline(kDeadlineDefault);
  if (pseudo_tree_ != nullptr) pseudo_tree_->close();
  if (filesystem_ != nullptr && !options_.read_only) {
    std::promise<Result<void>> done;
    filesystem_->sync_all([&done](Result<void> result) { done.set_value(std::move(result)); });
    const Result<void> synced = done.get_future().get();
    if (!synced) outcome = std::unexpected(explain(options_.device_path, synced.error()));
  }
  if (batcher_ != nullptr) batcher_->close();
  if (pool_ != nullptr) pool_->close();
  if (pseudo_pool_ != nullptr) pseudo_pool_->close();
  if (auto closed = volume_->close(); !closed && outcome) {
    outcome = std::unexpected(explain(options_.device_path, closed.error()));
  }
  return outcome;
}

std::expected<void, Complaint> MountedSession::finish() {
  const std::lock_guard lock(finish_mutex_);
  if (!finished_) finished_ = close_store();
  return *finished_;
}

}  // namespace

std::expected<std::unique_ptr<Session>, Complaint> Session::start(const MountOptions& options) {
  auto session = std::make_unique<MountedSession>(options);
  if (auto opened = session->open(); !opened) return std::unexpected(opened.error());
  return session;
}

}  // namespace kvslot
