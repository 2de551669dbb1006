// `kvslot format`, and making a store for other commands. The step after is core's format_device.
#include <fcntl.h>
#include <fmt/core.h>
#include <kvslot/admin.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "fs/cli/commands.h"
#include "fs/cli/complaint.h"
#include "fs/cli/format_store.h"
#include "fs/cli/store_access.h"
#include "fs/text.h"

namespace kvslot::cli {
namespace {

// An image that was made or grown for a format, and is put back unless the format succeeds.
class ImageFile {
 public:
  enum class Change : std::uint8_t { kNone, kCreated, kGrown };

  ImageFile(std::string path, Change change) : path_(std::move(path)), change_(change) {}
  ImageFile(ImageFile&& other) noexcept
      : path_(std::move(other.path_)), change_(std::exchange(other.change_, Change::kNone)) {}
  ImageFile& operator=(ImageFile&&) = delete;
  ~ImageFile() {
    if (change_ == Change::kCreated) ::unlink(path_.c_str());
    // Nobody is left to tell when this fails too; the file then is as large as was asked for.
    if (change_ == Change::kGrown && ::truncate(path_.c_str(), 0) != 0) return;
  }
  void keep() { change_ = Change::kNone; }

 private:
  std::string path_;
  Change change_;
};

std::unexpected<Complaint> refuse(std::string what) { return std::unexpected(std::move(what)); }

std::expected<ImageFile, Complaint> create_image(const std::string& path,
                                                 std::uint64_t size_bytes) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    return refuse(fmt::format("cannot be created: {}; choose another path", errno_text(errno)));
  }
  ImageFile image(path, ImageFile::Change::kCreated);
  const int result = ::ftruncate(fd, static_cast<off_t>(size_bytes));
  const int error = errno;
  ::close(fd);
  if (result != 0) {
    return refuse(fmt::format("cannot become {} large: {}; give a smaller --size",
                              size_text(size_bytes), errno_text(error)));
  }
  return image;
}

std::expected<ImageFile, Complaint> grow_image(const std::string& path, std::uint64_t size_bytes) {
  if (::truncate(path.c_str(), static_cast<off_t>(size_bytes)) != 0) {
    return refuse(fmt::format("cannot grow to {}: {}; give a smaller --size", size_text(size_bytes),
                              errno_text(errno)));
  }
  return ImageFile(path, ImageFile::Change::kGrown);
}

// The loop device that shows this image as a block device, which no lock on the file tells.
std::string loop_device_over(const std::string& path) {
  const std::string wanted = absolute_path(path);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/block", error)) {
    std::ifstream file(entry.path() / "loop/backing_file");
    std::string backing;
    if (std::getline(file, backing) && backing == wanted) {
      return "/dev/" + entry.path().filename().string();
    }
  }
  return {};
}

std::expected<ImageFile, Complaint> prepare_image(const FormatArguments& arguments) {
  const std::string& path = arguments.path;
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) {
      return refuse(fmt::format("{}; choose another path", errno_text(errno)));
    }
    if (!arguments.size_bytes) {
      return refuse("does not exist; give --size SIZE to create an image there");
    }
    return create_image(path, *arguments.size_bytes);
  }
  if (!S_ISREG(status.st_mode)) {  // the engine refuses what is no block device either
    if (arguments.size_bytes && S_ISBLK(status.st_mode)) {
      return refuse("is a block device and has its size; leave out --size");
    }
    return ImageFile(path, ImageFile::Change::kNone);
  }
  if (const std::string loop = loop_device_over(path); !loop.empty()) {
    return refuse(
        fmt::format("is in use by {}; format that, or detach it with 'losetup -d {}'", loop, loop));
  }
  if (status.st_size == 0) {
    if (!arguments.size_bytes) return refuse("is empty; give --size SIZE to grow it");
    return grow_image(path, *arguments.size_bytes);
  }
  const auto size_bytes = static_cast<std::uint64_t>(status.st_size);
  if (arguments.size_bytes && *arguments.size_bytes != size_bytes) {
    return refuse(fmt::format("is {} large already; leave out --size, or remove the file first",
                              size_text(size_bytes)));
  }
  return ImageFile(path, ImageFile::Change::kNone);
}

// Makes the new directory entry durable, as the store below it is.
void flush_directory_of(const std::string& path) {
  const std::string parent = std::filesystem::path(absolute_path(path)).parent_path().string();
  const int fd = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

std::expected<void, Complaint> check_format_arguments(const FormatArguments& arguments) {
  const std::uint64_t slot_size_bytes = arguments.slot_size_bytes;
  if (!std::has_single_bit(slot_size_bytes) || slot_size_bytes < kSlotSizeBytesMin ||
      slot_size_bytes > kSlotSizeBytesMax) {
    return refuse("--slot-size: cannot be that; give a power of two from 4K to 4M");
  }
  if (arguments.label.size() > kLabelSizeBytesMax) {
    return refuse(fmt::format("--label: is too long; give at most {} bytes", kLabelSizeBytesMax));
  }
  if (!arguments.size_bytes) return {};
  if (*arguments.size_bytes < kStoreSizeBytesMin)
    return refuse("--size: is too small; give at least 16M");
  if (*arguments.size_bytes > kStoreSizeBytesMax)
    return refuse("--size: is too large; give at most 16T");
  if (*arguments.size_bytes % kBlockSizeBytes != 0) {
    return refuse("--size: leaves part of a block over; give a multiple of 4K");
  }
  return {};
}

std::expected<Geometry, Complaint> format_store(const FormatArguments& arguments) {
  auto image = prepare_image(arguments);
  if (!image) return std::unexpected(image.error());
  auto device = open_device(arguments.path, Access::kWrite);
  if (!device) return std::unexpected(device.error());
  const FormatOptions options{
      .slot_size_bytes = static_cast<std::uint32_t>(arguments.slot_size_bytes),
      .label = arguments.label,
      .force = arguments.force,
      .clock = {},
      .root_uid = ::geteuid(),
      .root_gid = ::getegid()};
  const auto geometry = format_device(**device, options);
  if (!geometry) return refuse(explain_store(geometry.error()));
  image->keep();
  flush_directory_of(arguments.path);
  return *geometry;
}

int run_format(const FormatArguments& arguments) {
  if (const auto checked = check_format_arguments(arguments); !checked) {
    complain("format", checked.error());
    return kExitUsage;
  }
  const auto geometry = format_store(arguments);
  if (!geometry) return complain(arguments.path, geometry.error());
  fmt::print("{}: formatted, UUID {}, {} slots of {}, journal {}\n", escape_control(arguments.path),
             to_string(geometry->uuid), geometry->slot_count, size_text(geometry->slot_size_bytes),
             size_text(geometry->journal_size_bytes));
  return kExitOk;
}

}  // namespace kvslot::cli
