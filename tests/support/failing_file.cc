// One thread serves all requests; one that is kept is remembered and answered later, so that no
// thread waits and the others go on.
#include "tests/support/failing_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "fs/fuse_library.h"
#include "tests/support/patience.h"

namespace kvslot::testing {
namespace {

constexpr fuse_ino_t kFileNode = 2;
constexpr std::string_view kFileName = "device";

}  // namespace

struct FailingFile::Request {
  fuse_req_t request = nullptr;
  FileOperation operation = FileOperation::kRead;
  std::size_t size_bytes = 0;
  off_t offset_bytes = 0;
  std::vector<char> bytes;  // to write
};

struct FailingFile::State {
  int fd = -1;
  Mutex mutex;
  Condition changed;
  std::array<int, 3> errors GUARDED_BY(mutex){};
  std::array<bool, 3> holds GUARDED_BY(mutex){};
  std::vector<Request> kept GUARDED_BY(mutex);

  void handle(Request request) {
    const auto which = static_cast<std::size_t>(request.operation);
    int error = 0;
    {
      MutexLock lock(mutex);
      if (holds[which]) {
        kept.push_back(std::move(request));
        changed.notify_all();
        return;
      }
      error = errors[which];
    }
    if (error != 0)
      fuse_reply_err(request.request, error);
    else
      carry_out(request);
  }

  void carry_out(Request& request) const {
    if (request.operation == FileOperation::kFlush) {
      fuse_reply_err(request.request, ::fdatasync(fd) == 0 ? 0 : errno);
      return;
    }
    const bool is_read = request.operation == FileOperation::kRead;
    if (is_read) request.bytes.resize(request.size_bytes);
    const ssize_t moved =
        is_read ? ::pread(fd, request.bytes.data(), request.bytes.size(), request.offset_bytes)
                : ::pwrite(fd, request.bytes.data(), request.bytes.size(), request.offset_bytes);
    if (moved < 0)
      fuse_reply_err(request.request, errno);
    else if (is_read)
      fuse_reply_buf(request.request, request.bytes.data(), static_cast<std::size_t>(moved));
    else
      fuse_reply_write(request.request, static_cast<std::size_t>(moved));
  }

  void answer_kept(int os_errno) {
    std::vector<Request> requests;
    {
      MutexLock lock(mutex);
      holds.fill(false);
      requests.swap(kept);
    }
    for (Request& request : requests) {
      if (os_errno != 0)
        fuse_reply_err(request.request, os_errno);
      else
        carry_out(request);
    }
  }

  [[nodiscard]] struct stat status(fuse_ino_t node) const {
    struct stat status{};
    if (node == kFileNode) {
      ::fstat(fd, &status);
    } else {
      status.st_mode = S_IFDIR | 0755;
      status.st_nlink = 2;
    }
    status.st_ino = node;
    return status;
  }
};

namespace {

FailingFile::State& state_of(fuse_req_t request) {
  return *static_cast<FailingFile::State*>(fuse_req_userdata(request));
}

fuse_lowlevel_ops make_operations() {
  fuse_lowlevel_ops operations{};
  operations.lookup = [](fuse_req_t request, fuse_ino_t, const char* name) {
    if (kFileName != name) {
      fuse_reply_err(request, ENOENT);
      return;
    }
    fuse_entry_param entry{};
    entry.ino = kFileNode;
    entry.attr = state_of(request).status(kFileNode);
    fuse_reply_entry(request, &entry);
  };
  operations.getattr = [](fuse_req_t request, fuse_ino_t node, fuse_file_info*) {
    const struct stat status = state_of(request).status(node);
    fuse_reply_attr(request, &status, 0);
  };
  operations.open = [](fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
    info->direct_io = 1;  // every request of the user's is one here
    info->parallel_direct_writes = 1;
    fuse_reply_open(request, info);
  };
  operations.read = [](fuse_req_t request, fuse_ino_t, std::size_t size, off_t offset,
                       fuse_file_info*) {
    state_of(request).handle({.request = request,
                              .operation = FileOperation::kRead,
                              .size_bytes = size,
                              .offset_bytes = offset,
                              .bytes = {}});
  };
  operations.write = [](fuse_req_t request, fuse_ino_t, const char* bytes, std::size_t size,
                        off_t offset, fuse_file_info*) {
    state_of(request).handle({.request = request,
                              .operation = FileOperation::kWrite,
                              .size_bytes = size,
                              .offset_bytes = offset,
                              .bytes = {bytes, bytes + size}});
  };
  operations.fsync = [](fuse_req_t request, fuse_ino_t, int, fuse_file_info*) {
    state_of(request).handle({.request = request,
                              .operation = FileOperation::kFlush,
                              .size_bytes = 0,
                              .offset_bytes = 0,
                              .bytes = {}});
  };
  return operations;
}

}  // namespace

FailingFile::FailingFile(const std::string& backing, const std::string& directory)
    : directory_(directory),
      path_(directory + "/" + std::string(kFileName)),
      state_(std::make_unique<State>()) {
  std::filesystem::create_directory(directory_);
  state_->fd = ::open(backing.c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_GE(state_->fd, 0) << backing;
  fuse_args arguments{};
  for (const char* const argument : {"failing_file", "-o", "fsname=failing_file,allow_other"})
    fuse_opt_add_arg(&arguments, argument);
  static const fuse_lowlevel_ops operations = make_operations();
  session_ = fuse_session_new(&arguments, &operations, sizeof operations, state_.get());
  fuse_opt_free_args(&arguments);
  if (session_ != nullptr && fuse_session_mount(session_, directory_.c_str()) != 0) {
    fuse_session_destroy(session_);
    session_ = nullptr;
  }
  EXPECT_NE(session_, nullptr) << "mounting on " << directory_;
  if (session_ == nullptr) return;
  struct sigaction wake{};
  wake.sa_handler = [](int) {};  // interrupts a wait, and no more
  ::sigaction(SIGUSR1, &wake, nullptr);
  is_serving_ = true;
  server_ = std::thread([this] {
    fuse_session_loop(session_);
    is_serving_ = false;
  });
}

FailingFile::~FailingFile() {
  if (session_ != nullptr) {
    state_->answer_kept(EIO);
    fuse_session_exit(session_);
    ::umount2(directory_.c_str(), MNT_DETACH);
    while (is_serving_) {  // whoever has the file open keeps the connection up
      ::pthread_kill(server_.native_handle(), SIGUSR1);
      std::this_thread::yield();
    }
    server_.join();
    state_->answer_kept(EIO);
    fuse_session_unmount(session_);
    fuse_session_destroy(session_);
  }
  if (state_->fd >= 0) ::close(state_->fd);
}

void FailingFile::fail(FileOperation operation, int os_errno) {
  MutexLock lock(state_->mutex);
  state_->errors[static_cast<std::size_t>(operation)] = os_errno;
}

void FailingFile::hold(FileOperation operation) {
  MutexLock lock(state_->mutex);
  state_->holds[static_cast<std::size_t>(operation)] = true;
}

void FailingFile::wait_until_held(std::size_t requests) {
  if (::testing::Test::HasFailure()) return;  // what was to send them may not be there
  const auto end = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(state_->mutex);
  bool is_time_left = true;
  while (state_->kept.size() < requests && is_time_left)
    is_time_left = state_->changed.wait_until(state_->mutex, end);
  EXPECT_GE(state_->kept.size(), requests) << "nothing comes";
}

void FailingFile::release() { state_->answer_kept(0); }

}  // namespace kvslot::testing
