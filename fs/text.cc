// Keys, times and errnos as text. See text.h; called by the pseudo-files and the command line.
#include "fs/text.h"

#include <fmt/core.h>

#include <chrono>
#include <cstring>

namespace kvslot {
namespace {

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t size_bytes = 0;  // 0: the bytes are no UTF-8
};

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

// The code point at the start of `text`; overlong forms and surrogates are no UTF-8.
CodePoint decode_utf8(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {lead, 1};
  std::size_t size = 0;
  std::uint32_t value = 0;
  std::uint32_t smallest = 0;
  if ((lead & 0xE0U) == 0xC0U) {
    size = 2, value = lead & 0x1FU, smallest = 0x80;
  } else if ((lead & 0xF0U) == 0xE0U) {
    size = 3, value = lead & 0x0FU, smallest = 0x800;
  } else if ((lead & 0xF8U) == 0xF0U) {
    size = 4, value = lead & 0x07U, smallest = 0x10000;
  } else {
    return {};
  }
  if (text.size() < size) return {};
  for (std::size_t i = 1; i < size; ++i) {
    if (!is_continuation(text[i])) return {};
    value = (value << 6U) | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  const bool is_surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < smallest || value > 0x10FFFF || is_surrogate) return {};
  return {value, size};
}

bool is_control(std::uint32_t value) { return value < 0x20 || (value >= 0x7F && value < 0xA0); }

void append_hex(std::string& text, char byte) {
  text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
}

int hex_digit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

}  // namespace

std::string escape_key(std::string_view key) {
  std::string text;
  text.reserve(key.size());
  for (std::size_t i = 0; i < key.size();) {
    const char byte = key[i];
    const CodePoint point = decode_utf8(key.substr(i));
    const std::size_t size = point.size_bytes == 0 ? 1 : point.size_bytes;
    const bool is_misleading = i == 0 && (byte == '#' || key == "-");
    if (byte == '\t') {
      text += "\\t";
    } else if (byte == '\n') {
      text += "\\n";
    } else if (byte == '\\') {
      text += "\\\\";
    } else if (point.size_bytes == 0 || is_control(point.value) || is_misleading) {
      for (const char escaped : key.substr(i, size)) append_hex(text, escaped);
    } else {
      text += key.substr(i, size);
    }
    i += size;
  }
  return text;
}

std::string escape_control(std::string_view line) {
  std::string text;
  text.reserve(line.size());
  for (std::size_t i = 0; i < line.size();) {
    const CodePoint point = decode_utf8(line.substr(i));
    const std::size_t size = point.size_bytes == 0 ? 1 : point.size_bytes;
    if (point.size_bytes == 0 || is_control(point.value)) {
      for (const char escaped : line.substr(i, size)) append_hex(text, escaped);
    } else {
      text += line.substr(i, size);
    }
    i += size;
  }
  return text;
}

Result<std::string> unescape_key(std::string_view text) {
  std::string key;
  key.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      key += text[i];
      continue;
    }
    if (++i == text.size()) return fail(Errc::kInvalid, "key: ends within an escape");
    switch (text[i]) {
      case 't':
        key += '\t';
        break;
      case 'n':
        key += '\n';
        break;
      case '\\':
        key += '\\';
        break;
      case 'x': {
        const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
        const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
        if (high < 0 || low < 0) return fail(Errc::kInvalid, "key: \\x takes two hex digits");
        key += static_cast<char>(high * 16 + low);
        i += 2;
        break;
      }
      default:
        return fail(Errc::kInvalid, "key: unknown escape");
    }
  }
  return key;
}

std::string format_timestamp(TimestampNs time_ns) {
  constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
  const bool is_negative = time_ns < 0;
  // The magnitude of the smallest value has no signed form.
  const std::uint64_t magnitude =
      is_negative ? ~static_cast<std::uint64_t>(time_ns) + 1 : static_cast<std::uint64_t>(time_ns);
  return fmt::format("{}{}.{:09}", is_negative ? "-" : "", magnitude / kNsPerSecond,
                     magnitude % kNsPerSecond);
}

std::string errno_name(int os_errno) {
  if (os_errno == 0) return "-";
  const char* name = ::strerrorname_np(os_errno);
  return name != nullptr ? name : fmt::format("errno {}", os_errno);
}

}  // namespace kvslot
