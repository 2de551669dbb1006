// Does to an image what must not be done to one.
#pragma once

#include <cstdint>
#include <string>

namespace kvslot::testing {

// Overwrites bytes of an image.
void overwrite(const std::string& path, std::uint64_t offset_bytes, const std::string& bytes);

// Marks the store as one that only a newer kvslot understands.
void require_newer_version(const std::string& path);

// Garbles every copy of the superblock behind its signature.
void garble_superblocks(const std::string& path);

// A number that changes with any byte and with the length of a file.
[[nodiscard]] std::uint64_t fingerprint(const std::string& path);

}  // namespace kvslot::testing
