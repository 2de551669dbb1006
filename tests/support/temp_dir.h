// A directory that is removed with all that is in it when the test is over.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace kvslot::testing {

class TempDir {
 public:
  TempDir() {
    const char* const base = std::getenv("TMPDIR");
    std::string pattern = base != nullptr && *base != '\0' ? base : "/var/tmp";
    pattern += "/kvslot_test_XXXXXX";
    const char* const made = ::mkdtemp(pattern.data());
    EXPECT_NE(made, nullptr) << "mkdtemp " << pattern;
    if (made != nullptr) path_ = made;
  }
  ~TempDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string path(const std::string& name) const { return path_ + "/" + name; }

  // A sparse file of that size; returns its path.
  [[nodiscard]] std::string make_image(const std::string& name, std::uintmax_t size_bytes) const {
    const std::string image = path(name);
    if (std::FILE* const file = std::fopen(image.c_str(), "we")) std::fclose(file);
    std::error_code error;
    std::filesystem::resize_file(image, size_bytes, error);
    EXPECT_FALSE(error) << "resize " << image << ": " << error.message();
    return image;
  }

 private:
  std::string path_;
};

}  // namespace kvslot::testing
