// Which files take a request without waiting for the device. Used by core/file_device.
#pragma once

namespace kvslot {

// Whether submitting to the block device, or to the file on one, with RWF_NOWAIT does not wait for
// it. False where nothing is known: network and stacked file systems, and what sends the request
// to a server on the submitting thread, which waits where the server does not listen.
[[nodiscard]] bool takes_requests_at_once(int fd);

}  // namespace kvslot
