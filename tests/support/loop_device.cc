// Attaches by ioctl rather than by losetup, so that nothing has to be installed or parsed.
#include "tests/support/loop_device.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>

#include <cerrno>

namespace kvslot::testing {
namespace {

constexpr int kAttemptsMax = 64;  // another process may take the free device that we were told

loop_config config_for(int image_fd) {
  loop_config config{};
  config.fd = static_cast<std::uint32_t>(image_fd);
  config.block_size = 512;
  // AUTOCLEAR: the last close detaches it, also when a test is killed.
  config.info.lo_flags = LO_FLAGS_DIRECT_IO | LO_FLAGS_AUTOCLEAR;
  return config;
}

}  // namespace

Result<LoopDevice> LoopDevice::attach(const std::string& image_path) {
  const UniqueFd image(::open(image_path.c_str(), O_RDWR | O_CLOEXEC));
  if (!image) return fail(Errc::kIo, "loop: open the image", errno);
  const UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  if (!control) return fail(Errc::kInvalid, "loop: open /dev/loop-control", errno);
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) return fail(Errc::kInvalid, "loop: find a free device", errno);
    std::string path = "/dev/loop" + std::to_string(number);
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!fd) return fail(Errc::kInvalid, "loop: open the device", errno);
    const loop_config config = config_for(image.get());
    if (::ioctl(fd.get(), LOOP_CONFIGURE, &config) == 0) {
      return LoopDevice(std::move(fd), std::move(path));
    }
    if (errno != EBUSY) return fail(Errc::kInvalid, "loop: configure", errno);
  }
  return fail(Errc::kInvalid, "loop: every free device was taken by somebody else", EBUSY);
}

}  // namespace kvslot::testing
