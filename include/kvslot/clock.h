// Where times come from, in the unit that attributes use.
#pragma once

#include <kvslot/types.h>

#include <functional>

namespace kvslot {

// Nanoseconds since 1970.
[[nodiscard]] TimestampNs wall_clock_ns();

// Another source of such times, called from any thread. Empty: the wall clock.
using WallClock = std::function<TimestampNs()>;

}  // namespace kvslot
