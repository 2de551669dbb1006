// What a process of ours takes over from whoever started it. Called by main and fs/cli/daemon.
#pragma once

#include <initializer_list>

namespace kvslot::cli {

// Opens /dev/null in place of standard descriptors that are closed. Without them the next file that
// is opened would be one of them: the store, and what is printed would be written to it.
void open_standard_fds();

// Lets go of what a daemon has no use for: descriptors but the standard ones and `kept` (-1: none),
// which no program that it runs inherits; the environment but for PATH and TZ, also where
// /proc/PID/environ shows it; the working directory.
//   threads  only where the process has one
void isolate(std::initializer_list<int> kept);

}  // namespace kvslot::cli
