// See bench_report.h.
#include "fs/cli/bench_report.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

namespace kvslot::cli {
namespace {

std::int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string json_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char byte : text) {
    if (byte == '"' || byte == '\\') {
      quoted += '\\';
      quoted += byte;
    } else if (static_cast<unsigned char>(byte) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(byte));
    } else {
      quoted += byte;
    }
  }
  return quoted + '"';
}

std::string depth_text(const std::optional<double>& depth, const char* none) {
  return depth ? fmt::format("{:.2f}", *depth) : none;
}

}  // namespace

QueueDepthMeter::QueueDepthMeter(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return;
  const dev_t device = S_ISBLK(status.st_mode) ? status.st_rdev : status.st_dev;
  stat_path_ = fmt::format("/sys/dev/block/{}:{}/stat", ::major(device), ::minor(device));
}

void QueueDepthMeter::start() {
  weighted_at_start_ms_ = weighted_ms();
  started_ns_ = monotonic_ns();
}

void QueueDepthMeter::stop() {
  const std::int64_t ended_ns = monotonic_ns();
  const auto weighted = weighted_ms();
  if (!weighted || !weighted_at_start_ms_) return;
  weighted_sum_ms_ += *weighted - *weighted_at_start_ms_;
  elapsed_sum_ns_ += ended_ns - started_ns_;
  is_counted_ = true;
}

std::optional<double> QueueDepthMeter::average() const {
  if (!is_counted_ || elapsed_sum_ns_ <= 0) return std::nullopt;
  return static_cast<double>(weighted_sum_ms_) * 1e6 / static_cast<double>(elapsed_sum_ns_);
}

std::optional<std::uint64_t> QueueDepthMeter::weighted_ms() const {
  constexpr int kWeightedField = 11;  // Documentation/block/stat.rst
  std::ifstream file(stat_path_);
  std::uint64_t value = 0;
  for (int field = 1; field <= kWeightedField; ++field) {
    if (!(file >> value)) return std::nullopt;
  }
  return value;
}

std::uint64_t percentile(std::vector<std::uint64_t> values, double p) {
  std::ranges::sort(values);
  const auto rank = static_cast<std::size_t>(std::ceil(p * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

std::string json_row(const BenchRow& row, const BenchSetting& setting) {
  return fmt::format(
      "{{\"bench\":\"put\",\"n\":{},\"bytes\":{},\"mode\":\"{}\",\"durable\":{},\"rounds\":{},"
      "\"p50_us\":{},\"p95_us\":{},\"p99_us\":{},\"ratio\":{:.2f},\"queue_depth\":{},"
      "\"queue_depth_max\":{},\"engine\":{},\"ring_flags\":{},\"device\":{},\"direct_io\":{}}}\n",
      row.n, row.value_size_bytes, row.mode, row.durable ? 1 : 0, row.rounds, row.p50_us,
      row.p95_us, row.p99_us, row.ratio, depth_text(row.queue_depth, "null"), row.queue_depth_max,
      json_string(setting.engine), json_string(setting.ring_flags), json_string(setting.device),
      setting.is_direct ? "true" : "false");
}

std::string table_head(const BenchSetting& setting) {
  return fmt::format(
      "engine {} ({}), device {}, {}\n"
      "p50, p95, p99: microseconds for n puts; ratio: sequential p50 over batch p50;\n"
      "depth: average of the device while it ran; max: of the engine since the store was opened\n"
      "{:>5} {:>7} {:<10} {:>7} {:>9} {:>9} {:>9} {:>6} {:>6} {:>4}\n",
      setting.engine, setting.ring_flags, setting.device,
      setting.is_direct ? "O_DIRECT" : "through the page cache", "n", "bytes", "mode", "durable",
      "p50_us", "p95_us", "p99_us", "ratio", "depth", "max");
}

std::string table_row(const BenchRow& row) {
  return fmt::format("{:>5} {:>7} {:<10} {:>7} {:>9} {:>9} {:>9} {:>6.2f} {:>6} {:>4}\n", row.n,
                     row.value_size_bytes, row.mode, row.durable ? 1 : 0, row.p50_us, row.p95_us,
                     row.p99_us, row.ratio, depth_text(row.queue_depth, "-"), row.queue_depth_max);
}

}  // namespace kvslot::cli
