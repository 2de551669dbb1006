// Rows of a benchmark, for people and for programs, and what the operating system says about the
// device meanwhile. Called by fs/cli/bench_command.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvslot::cli {

// The average number of requests at a block device between two samples, from the weighted time in
// queue that the kernel counts in milliseconds.
class QueueDepthMeter {
 public:
  // The device itself, or the one below the file system that holds an image.
  explicit QueueDepthMeter(const std::string& path);

  void start();
  void stop();
  // Over all of start() to stop(); nothing where the kernel keeps no count for this device.
  [[nodiscard]] std::optional<double> average() const;

 private:
  [[nodiscard]] std::optional<std::uint64_t> weighted_ms() const;

  std::string stat_path_;
  std::optional<std::uint64_t> weighted_at_start_ms_;
  std::int64_t started_ns_ = 0;
  std::uint64_t weighted_sum_ms_ = 0;
  std::int64_t elapsed_sum_ns_ = 0;
  bool is_counted_ = false;
};

// The p-th percentile (0 to 1) by nearest rank of values that are not empty.
[[nodiscard]] std::uint64_t percentile(std::vector<std::uint64_t> values, double p);

struct BenchRow {
  std::uint64_t n = 0;
  std::uint64_t value_size_bytes = 0;
  std::string mode;  // "sequential", "batch"
  bool durable = false;
  std::uint64_t rounds = 0;
  std::uint64_t p50_us = 0, p95_us = 0, p99_us = 0;  // of a round of n puts
  double ratio = 0;                                  // sequential p50 over batch p50
  std::optional<double> queue_depth;                 // of the device, while it ran
  std::uint64_t queue_depth_max = 0;                 // of the engine, since the store was opened
};

// What all rows have in common.
struct BenchSetting {
  std::string engine;
  std::string ring_flags;
  std::string device;
  bool is_direct = false;
};

[[nodiscard]] std::string json_row(const BenchRow& row, const BenchSetting& setting);
[[nodiscard]] std::string table_head(const BenchSetting& setting);
[[nodiscard]] std::string table_row(const BenchRow& row);

}  // namespace kvslot::cli
