// The wall clock, in the unit that attributes use.
#pragma once

#include <kvslot/types.h>

namespace kvslot {

// Nanoseconds since 1970.
[[nodiscard]] TimestampNs wall_clock_ns();

}  // namespace kvslot
