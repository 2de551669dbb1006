// Capabilities by system calls: each holds for one thread, and threads inherit them.
#include "fs/privileges.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

namespace kvslot {

namespace {

constexpr std::uint64_t bit(unsigned capability) { return std::uint64_t{1} << capability; }

constexpr std::uint64_t kKept = bit(CAP_SYS_ADMIN) | bit(CAP_DAC_READ_SEARCH);

struct Capabilities {
  std::uint64_t effective = 0, permitted = 0, inheritable = 0;
};

using Words = std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3>;

__user_cap_header_struct this_thread() {
  return {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
}

std::uint64_t joined(std::uint32_t low, std::uint32_t high) {
  return low | (std::uint64_t{high} << 32);
}

Capabilities capabilities() {
  __user_cap_header_struct header = this_thread();
  Words words{};
  if (::syscall(SYS_capget, &header, words.data()) != 0) return {};
  return {.effective = joined(words[0].effective, words[1].effective),
          .permitted = joined(words[0].permitted, words[1].permitted),
          .inheritable = joined(words[0].inheritable, words[1].inheritable)};
}

void set_capabilities(const Capabilities& wanted) {
  __user_cap_header_struct header = this_thread();
  const auto low = [](std::uint64_t bits) { return static_cast<std::uint32_t>(bits); };
  const auto high = [](std::uint64_t bits) { return static_cast<std::uint32_t>(bits >> 32); };
  Words words{};
  words[0] = {low(wanted.effective), low(wanted.permitted), low(wanted.inheritable)};
  words[1] = {high(wanted.effective), high(wanted.permitted), high(wanted.inheritable)};
  ::syscall(SYS_capset, &header, words.data());  // giving up never fails
}

}  // namespace

void give_up_capabilities() {
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  const Capabilities before = capabilities();
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  for (unsigned capability = 0; ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0;) ++capability;
  set_capabilities({.permitted = before.permitted & kKept});
  if (may_mount()) ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

bool may_mount() { return (capabilities().permitted & bit(CAP_SYS_ADMIN)) != 0; }

RaisedPrivileges::RaisedPrivileges() {
  Capabilities now = capabilities();
  before_ = now.effective;
  now.effective |= now.permitted & kKept;
  set_capabilities(now);
}

RaisedPrivileges::~RaisedPrivileges() {
  Capabilities now = capabilities();
  now.effective = before_;
  set_capabilities(now);
}

}  // namespace kvslot
