// From a caller's bytes to a change the engine can commit: the one copy of a put. Used by
// core/store.cc and core/batcher.cc.
#pragma once

#include <kvslot/volume.h>

#include <string_view>

namespace kvslot {

// A change that stores `value` under `key`, cut into windows in aligned buffers. `key` is borrowed
// until the commit returns.
[[nodiscard]] ContentChange change_for_put(Volume& volume, std::string_view key, ConstBytes value);

}  // namespace kvslot
