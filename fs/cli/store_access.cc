// See store_access.h. Called by the commands on unmounted stores.
#include "fs/cli/store_access.h"

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "fs/cli/complaint.h"
#include "fs/cut_off.h"

namespace kvslot::cli {

std::expected<std::unique_ptr<Device>, Complaint> open_device(const std::string& path,
                                                              Access access) {
  auto device = open_file_device(path, {.read_only = access == Access::kRead});
  if (!device) return std::unexpected(explain_store(device.error()));
  return std::move(*device);
}

std::expected<std::unique_ptr<Store>, Complaint> open_store(const std::string& path, Access access,
                                                            std::size_t staging_size_bytes) {
  auto device = open_device(path, access);
  if (!device) return std::unexpected(device.error());
  StoreOptions options;
  options.volume.read_only = access == Access::kRead;
  options.volume.staging_size_bytes = staging_size_bytes;
  auto store = Store::open(std::move(*device), options);
  if (store) return std::move(*store);
  if (store.error().code == Errc::kCorrupt)
    if (auto cut_off = explain_cut_off(path)) return std::unexpected(*cut_off);
  return std::unexpected(explain_store(store.error()));
}

std::string absolute_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr),
                                                             &std::free);
  if (resolved != nullptr) return resolved.get();
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

}  // namespace kvslot::cli
