// What only the mount knows, for the control directory: options, transport, request counters.
// Called by fs/session, which hands it to fs/pseudo_tree.
#pragma once

#include <vector>

#include "fs/filesystem.h"
#include "fs/fuse_mount.h"
#include "fs/mount_options.h"
#include "fs/operations.h"
#include "fs/pseudo_tree.h"

namespace kvslot {

[[nodiscard]] ConfigLines config_lines(const MountOptions& options, const Transport& transport,
                                       const MountContext& context);
[[nodiscard]] std::vector<Stat> mount_stats(Filesystem& filesystem);
[[nodiscard]] LiveNodeInfo live_node(Filesystem& filesystem, NodeId node);

}  // namespace kvslot
