// KVSLOT_CHECK: an assertion that is on in every build, for our own mistakes around state that
// reaches the device. Bytes from the disk, the kernel or the user are errors, never checks.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace kvslot {

[[noreturn]] inline void check_failed(const char* what, const char* file, int line) {
  std::fprintf(stderr, "kvslot: check failed: %s (%s:%d)\n", what, file, line);
  std::abort();
}

}  // namespace kvslot

#define KVSLOT_CHECK(condition, what)                   \
  do {                                                  \
    if (!(condition)) [[unlikely]]                      \
      ::kvslot::check_failed(what, __FILE__, __LINE__); \
  } while (false)
