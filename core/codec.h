// Little-endian encoding into and out of byte buffers. Bytes from the device are read through
// ByteReader only: it never reads past its end, and one look at ok() judges the whole decoding.
// Used by core/layout.*, core/checkpoint_layout.* and core/records.*.
#pragma once

#include <kvslot/types.h>

#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kvslot {

// Appends to a vector. Threads: one thread at a time.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& target) : target_(target) {}

  template <typename T>
  void number(T value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    target_.insert(target_.end(), bytes, bytes + sizeof value);
  }
  void bytes(ConstBytes value) { target_.insert(target_.end(), value.begin(), value.end()); }
  void text(std::string_view value) { bytes(std::as_bytes(std::span(value))); }
  void zeros(std::size_t count) { target_.resize(target_.size() + count); }

 private:
  std::vector<std::byte>& target_;
};

// Reads from a span. After the first read past the end every value is zero and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(ConstBytes source) : source_(source) {}

  template <typename T>
  T number() {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    T value{};
    const ConstBytes taken = bytes(sizeof value);
    if (!taken.empty()) std::memcpy(&value, taken.data(), sizeof value);
    return value;
  }
  ConstBytes bytes(std::size_t count) {
    if (count > source_.size()) {
      ok_ = false;
      source_ = {};
      return {};
    }
    const ConstBytes taken = source_.first(count);
    source_ = source_.subspan(count);
    return taken;
  }
  std::string_view text(std::size_t count) {
    const ConstBytes taken = bytes(count);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::size_t left() const { return source_.size(); }

 private:
  ConstBytes source_;
  bool ok_ = true;
};

static_assert(std::endian::native == std::endian::little, "the layout is little-endian");

}  // namespace kvslot
