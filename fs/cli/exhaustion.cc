// See exhaustion.h. What runs when everything ran out allocates nothing.
#include "fs/cli/exhaustion.h"

#include <fmt/core.h>
#include <syslog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>
#include <system_error>

#include "fs/text.h"

namespace kvslot::cli {
namespace {

constexpr const char* kNoMemory =
    "out of memory; raise 'ulimit -v', or give a smaller -o staging=SIZE";
constexpr const char* kNoThread =
    "no thread can be started; raise 'ulimit -u' and 'ulimit -v', or end some processes";

const char* remedy_for(const std::exception& thrown) {
  if (dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr) return kNoMemory;
  if (dynamic_cast<const std::system_error*>(&thrown) != nullptr) return kNoThread;
  return nullptr;
}

struct LastLine {
  std::array<char, 4096> device{};  // as it may be printed
  int report_fd = -1;
  std::terminate_handler before = nullptr;
};
LastLine last_line;  // the handler gets nothing else

void end_process() {
  const char* what = nullptr;
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::exception& thrown) {
    what = remedy_for(thrown);
  } catch (...) {
  }
  if (what == nullptr) {
    if (last_line.before != nullptr) last_line.before();
    std::abort();
  }
  const bool is_reported = last_line.report_fd >= 0;
  std::array<char, 5000> line{};
  const int length =
      std::snprintf(line.data(), line.size(), is_reported ? "E%s: %s" : "kvslot: %s: %s\n",
                    last_line.device.data(), what);
  ::syslog(LOG_DAEMON | LOG_ERR, "%s: %s", last_line.device.data(), what);
  const int fd = is_reported ? last_line.report_fd : STDERR_FILENO;
  if (length > 0 && ::write(fd, line.data(), static_cast<std::size_t>(length)) < 0) ::_exit(1);
  ::_exit(1);
}

}  // namespace

Complaint explain_exhaustion(const std::exception& thrown) {
  const char* const what = remedy_for(thrown);
  return what != nullptr ? what : fmt::format("failed: {}; report this", thrown.what());
}

void end_in_one_line(const std::string& device_path, int report_fd) {
  const std::string shown = escape_control(device_path);
  std::copy_n(shown.data(), std::min(shown.size(), last_line.device.size() - 1),
              last_line.device.data());
  last_line.report_fd = report_fd;
  last_line.before = std::set_terminate(&end_process);
}

}  // namespace kvslot::cli
