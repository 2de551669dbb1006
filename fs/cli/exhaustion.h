// Memory or threads ran out, which the standard library tells by throwing.
// Called by fs/cli/daemon.
#pragma once

#include <exception>
#include <string>

#include "fs/session.h"

namespace kvslot::cli {

// What is lacking and what helps.
[[nodiscard]] Complaint explain_exhaustion(const std::exception& thrown);

// From now on, where a thread runs out of either and nobody can go on, the process ends with one
// line about the device: as a complaint to `report_fd` (see daemon.cc), or to standard error where
// that is -1, and to the system's log.
void end_in_one_line(const std::string& device_path, int report_fd);

}  // namespace kvslot::cli
