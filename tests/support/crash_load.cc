// See crash_load.h.
#include "tests/support/crash_load.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

namespace kvslot::testing {
namespace {

constexpr std::size_t kWriteBytesMax = 256 << 10;  // of one system call: one request to the daemon

// The store does not answer any more.
struct StoreEnded {
  int error = 0;
};

// Bytes that no other write has, fast.
std::string make_bytes(std::uint64_t seed, std::size_t size_bytes) {
  std::string bytes(size_bytes, '\0');
  std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (std::size_t i = 0; i < size_bytes; i += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(bytes.data() + i, &state, std::min(sizeof state, size_bytes - i));
  }
  return bytes;
}

}  // namespace

// One thread, its keys, and what it did to them.
class CrashLoad::Worker {
 public:
  Worker(CrashLoad& load, std::string root, const CrashLoadOptions& options, int number,
         const TreeContent& before)
      : load_(load),
        root_(std::move(root)),
        options_(options),
        number_(number),
        generator_(options.seed * 1000 + static_cast<std::uint64_t>(number)) {
    for (const std::string& path : before.directories) {
      if (is_own(path)) start_history(path, KeyState::directory());
    }
    for (const auto& [path, bytes] : before.files) {
      if (!is_own(path)) continue;
      start_history(path, KeyState::of(bytes));
      files_[path] = bytes;
    }
  }

  void run(const std::function<void(std::uint64_t)>& on_operation) {
    on_operation_ = &on_operation;
    try {
      if (!is_there(home())) make_directory(home());
      for (;;) step();
    } catch (const StoreEnded& ended) {
      if (!load_.is_ending_) {
        failure_ =
            fmt::format("thread {}: {} failed: {}\n", number_, doing_, std::strerror(ended.error));
      }
    }
  }

  [[nodiscard]] const Histories& histories() const { return histories_; }
  [[nodiscard]] const std::string& failure() const { return failure_; }

 private:
  // ---- Keys

  [[nodiscard]] std::string home() const { return fmt::format("d{}", number_); }
  [[nodiscard]] bool is_own(const std::string& path) const {
    return path == home() || path.starts_with(home() + "/") ||
           path.starts_with(fmt::format("w{}-", number_));
  }
  std::uint64_t draw(std::uint64_t below) { return generator_() % below; }
  bool one_in(std::uint64_t count) { return draw(count) == 0; }

  std::string any_file_path() {
    const std::uint64_t which = draw(5);
    switch (draw(4)) {
      case 0:
        return fmt::format("w{}-{}", number_, which);
      case 1:
        if (const std::string directory = fmt::format("{}/sub{}", home(), draw(2));
            is_there(directory)) {
          return fmt::format("{}/{}", directory, draw(3));
        }
        [[fallthrough]];
      default:
        return fmt::format("{}/{}", home(), which);
    }
  }
  [[nodiscard]] bool is_there(const std::string& path) const {
    const auto found = histories_.find(path);
    return found != histories_.end() &&
           found->second.versions.back().state.kind != KeyState::Kind::kNothing;
  }
  [[nodiscard]] std::string full(const std::string& path) const { return root_ + "/" + path; }

  // ---- What was done

  void start_history(const std::string& path, const KeyState& state) {
    histories_[path].versions.push_back({.state = state, .what = "found", .acknowledged = 1});
  }
  KeyVersion& issue(const std::string& path, const KeyState& state, std::string what) {
    if (!histories_.contains(path)) start_history(path, {});
    auto& versions = histories_[path].versions;
    versions.push_back({.state = state, .what = std::move(what), .issued = load_.clock_.tick()});
    doing_ = fmt::format("{} {}", versions.back().what, path);
    return versions.back();
  }
  void issue_passing(const std::string& path, std::string what) {
    issue(path, KeyState::of(files_[path]), std::move(what)).is_passing = true;
  }
  void acknowledge(const std::string& path) {
    histories_[path].versions.back().acknowledged = load_.clock_.tick();
  }
  void commit_point(const std::string& path) {
    histories_[path].versions.back().is_passing = false;
  }
  void durable(const std::string& path) {
    KeyHistory& history = histories_[path];
    history.durable = history.versions.size() - 1;
  }
  void durable_if_sync(const std::string& path) {
    if (options_.is_sync) durable(path);
  }
  int must(int result) {
    if (result < 0) throw StoreEnded{errno};
    return result;
  }
  void count() { (*on_operation_)(++load_.acknowledged_); }

  // ---- System calls

  struct Open {
    std::string path;
    int fd = -1;
    bool is_new = false;
    bool has_changed = false;  // since it was opened
    ~Open() {
      if (fd >= 0) ::close(fd);
    }
  };

  // Nothing for new files only: others that are only emptied have no commit point at their close.
  std::size_t any_size(const Open& file) {
    switch (draw(16)) {
      case 0:
        return file.is_new ? 0 : 1;
      case 1:
        return draw(options_.value_size_bytes_max);
      case 2:
      case 3:
        return draw(300 << 10);
      case 4:
        return 4096 * (1 + draw(3));
      default:
        return draw(12 << 10);
    }
  }
  void open(Open& file, const std::string& path, int flags) {
    file.path = path;
    const bool is_new = !is_there(path);
    const bool empties = is_new || (flags & O_TRUNC) != 0;
    if (empties) {
      const bool was_empty = !is_new && files_[path].empty();
      files_[path].clear();
      if (!was_empty) issue_passing(path, is_new ? "create" : "open O_TRUNC");
    }
    doing_ = "open " + path;
    file.fd = must(::open(full(path).c_str(), flags | O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    if (empties) acknowledge(path);
    file.has_changed = file.is_new = is_new;
  }

  void write(Open& file, std::uint64_t offset, std::size_t size_bytes) {
    const std::string bytes = make_bytes(generator_(), size_bytes);
    for (std::size_t done = 0; done < size_bytes;) {
      const std::size_t size = std::min(size_bytes - done, 1 + draw(kWriteBytesMax));
      std::string& content = files_[file.path];
      const std::string before = content;
      content.resize(std::max<std::size_t>(content.size(), offset + done + size));
      content.replace(offset + done, size, bytes, done, size);
      const KeyState old = histories_[file.path].versions.back().state;
      auto parts = KeyState::between(old, before, content, offset + done, offset + done + size);
      const KeyState whole = parts.back();
      parts.pop_back();
      KeyVersion& version =
          issue(file.path, whole, fmt::format("write {} at {}", size, offset + done));
      version.is_passing = true;
      version.parts = std::move(parts);
      const ssize_t written =
          ::pwrite(file.fd, bytes.data() + done, size, static_cast<off_t>(offset + done));
      if (written < 0) throw StoreEnded{errno};
      if (static_cast<std::size_t>(written) != size) throw StoreEnded{EIO};
      acknowledge(file.path);
      file.has_changed = true;
      done += size;
    }
  }

  void cut(Open& file, std::size_t size_bytes) {
    files_[file.path].resize(size_bytes);
    issue_passing(file.path, fmt::format("ftruncate {}", size_bytes));
    if (options_.is_sync) commit_point(file.path);
    must(::ftruncate(file.fd, static_cast<off_t>(size_bytes)));
    acknowledge(file.path);
    durable_if_sync(file.path);
    file.has_changed = true;
  }

  void fsync(Open& file) {
    commit_point(file.path);
    doing_ = "fsync " + file.path;
    must(::fsync(file.fd));
    durable(file.path);
    count();
  }

  void close(Open& file) {
    commit_point(file.path);
    doing_ = "close " + file.path;
    must(::close(std::exchange(file.fd, -1)));
    // What was only emptied is committed after the last close.
    if (file.has_changed) durable_if_sync(file.path);
    count();
  }

  void sync_directory(const std::string& path) {
    const int fd = must(::open(full(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const std::size_t barrier = load_.clock_.begin_barrier();
    doing_ = "fsync of directory " + path;
    const int result = ::fsync(fd);
    const int error = errno;
    if (result == 0) load_.clock_.end_barrier(barrier);
    ::close(fd);
    errno = error;
    must(result);
    count();
  }

  void make_directory(const std::string& path) {
    issue(path, KeyState::directory(), "mkdir");
    must(::mkdir(full(path).c_str(), 0755));
    acknowledge(path);
    durable_if_sync(path);
    count();
  }

  void remove(const std::string& path) {
    const bool is_directory = !files_.contains(path);
    files_.erase(path);
    issue(path, {}, is_directory ? "rmdir" : "unlink");
    must(is_directory ? ::rmdir(full(path).c_str()) : ::unlink(full(path).c_str()));
    acknowledge(path);
    durable_if_sync(path);
    count();
  }

  // The key and, of a directory, what is in it.
  std::vector<std::string> with_children(const std::string& path) {
    std::vector<std::string> all = {path};
    for (const auto& [other, bytes] : files_) {
      if (other.starts_with(path + "/")) all.push_back(other);
    }
    return all;
  }

  // Where the source had its commit point, both ends of the rename are seen after a crash, or none.
  void issue_move(const std::string& from, const std::string& to, bool exchanges) {
    for (const std::string& source : with_children(from)) {
      const std::string target = to + source.substr(from.size());
      KeyVersion& last = histories_[source].versions.back();
      const bool is_linked = !last.is_passing;
      last.is_passing = false;
      if (!histories_.contains(target)) start_history(target, {});
      KeyVersion& last_of_target = histories_[target].versions.back();
      const bool is_target_linked = !exchanges || !last_of_target.is_passing;
      last_of_target.is_passing = last_of_target.is_passing && !exchanges;
      const KeyState moved = histories_[source].versions.back().state;
      const KeyState replaced = exchanges ? histories_[target].versions.back().state : KeyState();
      const std::uint64_t move =
          is_linked && is_target_linked ? load_.clock_.tick() : std::uint64_t{0};
      issue(source, replaced, fmt::format("rename {} {}", exchanges ? "with" : "to", target)).move =
          move;
      issue(target, moved, fmt::format("rename {} {}", exchanges ? "with" : "of", source)).move =
          move;
    }
  }

  void rename(const std::string& from, const std::string& to, bool exchanges = false) {
    const std::vector<std::string> sources = with_children(from);
    issue_move(from, to, exchanges);
    for (const std::string& source : sources) {
      const std::string target = to + source.substr(from.size());
      if (exchanges) {
        std::swap(files_[source], files_[target]);
      } else if (auto moved = files_.extract(source)) {
        files_[target] = std::move(moved.mapped());
      }
    }
    must(::renameat2(AT_FDCWD, full(from).c_str(), AT_FDCWD, full(to).c_str(),
                     exchanges ? RENAME_EXCHANGE : 0));
    for (const std::string& source : sources) {
      for (const std::string& path : {source, to + source.substr(from.size())}) {
        acknowledge(path);
        durable_if_sync(path);
      }
    }
    count();
  }

  // ---- Operations

  void finish(Open& file) {
    if (one_in(3)) fsync(file);
    close(file);
  }

  void put(const std::string& path) {
    Open file;
    open(file, path, O_TRUNC);
    write(file, 0, any_size(file));
    finish(file);
  }

  void append(const std::string& path) {
    Open file;
    open(file, path, O_APPEND);
    for (std::uint64_t left = 1 + draw(3); left > 0; --left) {
      write(file, files_[path].size(), 1 + draw(9000));
      if (one_in(4)) fsync(file);
    }
    finish(file);
  }

  void rewrite(const std::string& path) {
    Open file;
    open(file, path, 0);
    for (std::uint64_t left = 1 + draw(4); left > 0; --left) {
      const std::uint64_t size = files_[path].size();
      write(file, draw(size + 5000), 1 + draw(one_in(6) ? 400 << 10 : 6000));
      if (one_in(5)) cut(file, draw(files_[path].size() + 3000));
    }
    finish(file);
  }

  void truncate(const std::string& path) {
    const std::size_t size = draw(files_[path].size() + 5000);
    if (size == files_[path].size()) return;
    files_[path].resize(size);
    issue(path, KeyState::of(files_[path]), fmt::format("truncate {}", size));
    must(::truncate(full(path).c_str(), static_cast<off_t>(size)));
    acknowledge(path);
    durable_if_sync(path);
    count();
  }

  // A file that takes the place of another one, or of none, at each stage of being written.
  void replace(const std::string& path) {
    const std::string name =
        path.substr(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
    const std::string temporary = one_in(3)   ? any_file_path()
                                  : one_in(2) ? fmt::format("w{}-new", number_)
                                              : fmt::format("{}/{}.new", home(), name);
    if (temporary == path) return;
    Open file;
    open(file, temporary, one_in(2) ? O_TRUNC : 0);
    write(file, 0, any_size(file));
    const std::uint64_t stage = draw(5);
    if (stage == 0) fsync(file);
    if (stage < 3) close(file);
    rename(temporary, path);
    if (file.fd < 0) return;
    file.path = path;
    if (stage == 4) write(file, files_[path].size(), 1 + draw(5000));
    finish(file);
  }

  void move_directory() {
    const std::string from = fmt::format("{}/sub{}", home(), draw(2));
    const std::string to = fmt::format("{}/sub{}", home(), draw(2));
    if (!is_there(from)) return make_directory(from);
    if (from != to && with_children(to).size() == 1) return rename(from, to);
    for (const std::string& path : with_children(from)) {
      if (path != from) remove(path);
    }
    remove(from);
  }

  void sync_something(const std::string& path) {
    if (!is_there(path) || one_in(2)) return sync_directory(one_in(2) ? "" : home());
    Open file;
    file.path = path;
    file.fd = must(::open(full(path).c_str(), O_RDONLY | O_CLOEXEC));
    fsync(file);
  }

  void step() {
    const std::string path = any_file_path();
    switch (draw(13)) {
      case 0:
      case 1:
        return put(path);
      case 2:
      case 3:
      case 4:
        return replace(path);
      case 5:
        return is_there(path) ? append(path) : put(path);
      case 6:
        return is_there(path) ? rewrite(path) : put(path);
      case 7:
        return is_there(path) ? truncate(path) : put(path);
      case 8:
        return is_there(path) ? remove(path) : put(path);
      case 9: {
        const std::string other = any_file_path();
        if (!is_there(path) || path == other) return;
        return rename(path, other, is_there(other) && one_in(2));
      }
      case 10:
        return move_directory();
      default:
        return sync_something(path);
    }
  }

  CrashLoad& load_;
  const std::string root_;
  const CrashLoadOptions options_;
  const int number_;
  std::mt19937_64 generator_;
  Histories histories_;
  std::map<std::string, std::string> files_;  // what is in the mount
  const std::function<void(std::uint64_t)>* on_operation_ = nullptr;
  std::string doing_;
  std::string failure_;
};

CrashLoad::CrashLoad(const std::string& root, const CrashLoadOptions& options,
                     const TreeContent& before) {
  for (int number = 0; number < options.threads; ++number) {
    workers_.push_back(std::make_unique<Worker>(*this, root, options, number, before));
  }
}

CrashLoad::~CrashLoad() = default;

void CrashLoad::run(const std::function<void(std::uint64_t)>& on_operation) {
  std::vector<std::jthread> threads;
  for (const auto& worker : workers_) {
    threads.emplace_back([&worker, &on_operation] { worker->run(on_operation); });
  }
}

std::string CrashLoad::judge(const TreeContent& after) const {
  std::string wrong = after.failures;
  Histories all;
  for (const auto& worker : workers_) {
    wrong += worker->failure();
    all.insert(worker->histories().begin(), worker->histories().end());
  }
  return wrong + judge_crash(all, clock_.barriers(), after.states());
}

}  // namespace kvslot::testing
