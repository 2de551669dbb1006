// Makes a store on an image or block device, or leaves everything as it was.
// Called by `kvslot format` and `kvslot exec --size`.
#pragma once

#include <kvslot/options.h>

#include <expected>

#include "fs/cli/commands.h"
#include "fs/session.h"

namespace kvslot::cli {

// Why the size, slot size or label cannot be, before anything is touched.
[[nodiscard]] std::expected<void, Complaint> check_format_arguments(
    const FormatArguments& arguments);

// Creates the image where there is none, grows an empty one, and writes an empty store. A failure
// removes what was created and shrinks what was grown.
std::expected<Geometry, Complaint> format_store(const FormatArguments& arguments);

}  // namespace kvslot::cli
