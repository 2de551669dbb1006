// Stores what a descriptor holds as one value, also where it is larger than memory.
// Called by `kvslot put`; the step after is core's Store, or its Volume.
#pragma once

#include <kvslot/store.h>

#include <expected>
#include <string>

namespace kvslot::cli {

// Which side of the copy failed; the store is unchanged then.
struct InputFailure {
  bool is_source = false;  // reading, with error.os_errno; otherwise storing
  Error error;
};

// Reads to the end and stores all of it under `key`, or nothing.
//   threads  nobody else uses the store meanwhile
std::expected<void, InputFailure> store_value(Store& store, const std::string& key, int fd);

}  // namespace kvslot::cli
