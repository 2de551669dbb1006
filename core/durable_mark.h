// A journal block without records. It says which blocks before it are durable.
//
// Used by core/recovery.cc, and by Volume::record_durable.
#pragma once

#include <cstdint>

#include "core/state.h"

namespace kvslot {

// Writes one at the head of the ring, which it moves; a flush is the caller's concern, and so are
// the sequences of the state.
//   errors   kNoSpace: the journal is full; otherwise the device's, and the ring stays as it is
[[nodiscard]] Result<void> append_empty_block(Volume::State& state, std::uint64_t durable_upto)
    REQUIRES(state.commit_turn);

}  // namespace kvslot
