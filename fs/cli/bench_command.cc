// `kvslot bench put`: N single puts, one after the other, against one batch of N, side by side.
// The step after is core's Store.
//
// Rounds alternate (sequential, batch, sequential, ...), so that whatever else the machine does
// meets both alike. Between rounds, outside the measured time, the keys are removed again and the
// store is flushed: every round puts new keys into free slots.
#include <fmt/core.h>
#include <kvslot/store.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>

#include "fs/cli/bench_report.h"
#include "fs/cli/commands.h"
#include "fs/cli/complaint.h"
#include "fs/cli/store_access.h"

namespace kvslot::cli {
namespace {

constexpr std::uint32_t kWarmUpRounds = 3;
constexpr std::size_t kStagingSizeBytes = 256 * kMiB;
constexpr std::string_view kKeyPrefix = "kvslot-bench";

struct Cell {
  std::size_t n = 0;
  std::size_t value_size_bytes = 0;
  bool durable = false;
};

std::vector<Cell> cells_of(BenchGrid grid) {
  std::vector<std::size_t> counts = {10, 100};
  std::vector<std::size_t> sizes = {4 * kKiB, 64 * kKiB};
  if (grid == BenchGrid::kFull) {
    counts.push_back(1000);
    sizes.push_back(256 * kKiB);
  }
  std::vector<Cell> cells;
  for (const std::size_t size : sizes) {
    for (const std::size_t n : counts) {
      cells.push_back({.n = n, .value_size_bytes = size, .durable = false});
      cells.push_back({.n = n, .value_size_bytes = size, .durable = true});
    }
  }
  return cells;
}

enum class Mode : std::uint8_t { kSequential = 0, kBatch = 1 };
constexpr std::array<Mode, 2> kModes = {Mode::kSequential, Mode::kBatch};
constexpr std::array<const char*, 2> kModeNames = {"sequential", "batch"};

using Outcome = std::expected<void, Complaint>;

// One cell of the grid: its keys and values, and its measurements in both modes.
class CellRun {
 public:
  CellRun(Store& store, const Cell& cell, const std::string& path)
      : store_(store), cell_(cell), meters_{QueueDepthMeter(path), QueueDepthMeter(path)} {
    std::mt19937_64 random(cell.n * cell.value_size_bytes);
    bytes_.resize(cell.n * cell.value_size_bytes / sizeof(std::uint64_t));
    for (std::uint64_t& word : bytes_) word = random();
    for (std::size_t i = 0; i < cell.n; ++i) keys_.push_back(fmt::format("{}/{}", kKeyPrefix, i));
    const ConstBytes all = std::as_bytes(std::span(bytes_));
    for (std::size_t i = 0; i < cell.n; ++i) {
      const ConstBytes value = all.subspan(i * cell.value_size_bytes, cell.value_size_bytes);
      puts_.push_back({.key = keys_[i], .value = value});
    }
  }

  Outcome measure(std::uint32_t rounds) {
    for (std::uint32_t round = 0; round < kWarmUpRounds + rounds; ++round) {
      for (const Mode mode : kModes) {
        const bool is_warm_up = round < kWarmUpRounds;
        const bool is_last = round + 1 == kWarmUpRounds + rounds;
        if (auto done = run_round(mode, is_warm_up, is_last); !done) return done;
      }
    }
    return {};
  }

  [[nodiscard]] BenchRow row(Mode mode, std::uint64_t queue_depth_max) const {
    const auto& times = times_us_[std::to_underlying(mode)];
    const double sequential = static_cast<double>(percentile(times_us_[0], 0.5));
    const double batch = static_cast<double>(percentile(times_us_[1], 0.5));
    return {.n = cell_.n,
            .value_size_bytes = cell_.value_size_bytes,
            .mode = kModeNames[std::to_underlying(mode)],
            .durable = cell_.durable,
            .rounds = times.size(),
            .p50_us = percentile(times, 0.5),
            .p95_us = percentile(times, 0.95),
            .p99_us = percentile(times, 0.99),
            .ratio = batch > 0 ? sequential / batch : 0,
            .queue_depth = meters_[std::to_underlying(mode)].average(),
            .queue_depth_max = queue_depth_max};
  }

 private:
  Outcome run_round(Mode mode, bool is_warm_up, bool verifies) {
    QueueDepthMeter& meter = meters_[std::to_underlying(mode)];
    if (!is_warm_up) meter.start();
    const auto start = std::chrono::steady_clock::now();
    const Result<void> put = mode == Mode::kBatch ? put_batch() : put_one_by_one();
    const auto elapsed = std::chrono::steady_clock::now() - start;
    if (!is_warm_up) meter.stop();
    if (!put) return std::unexpected(explain_key(put.error()));
    if (!is_warm_up) {
      const auto elapsed_us = std::chrono::duration_cast<std::chrono::microseconds>(elapsed);
      times_us_[std::to_underlying(mode)].push_back(static_cast<std::uint64_t>(elapsed_us.count()));
    }
    if (verifies) {
      if (auto verified = verify(); !verified) return verified;
    }
    return remove_keys();
  }

  [[nodiscard]] PutOptions put_options() const {
    return {.durability = cell_.durable ? Durability::kDurable : Durability::kWritten};
  }

  Result<void> put_one_by_one() {
    for (const Put& put : puts_) {
      if (auto stored = store_.put(put.key, put.value, put_options()); !stored) return stored;
    }
    return {};
  }

  Result<void> put_batch() {
    for (const Result<void>& result : store_.put_many(puts_, put_options()).results) {
      if (!result) return result;
    }
    return {};
  }

  Outcome verify() {
    for (const Put& put : puts_) {
      const auto value = store_.get(put.key);
      if (!value)
        return std::unexpected(fmt::format("reading back: {}", explain_key(value.error())));
      if (value->size() != put.value.size() ||
          std::memcmp(value->data(), put.value.data(), value->size()) != 0) {
        return std::unexpected(fmt::format("{} has other bytes than were put; run fsck", put.key));
      }
    }
    return {};
  }

  Outcome remove_keys() {
    const std::vector<std::string_view> views(keys_.begin(), keys_.end());
    for (const Result<void>& removed : store_.remove_many(views)) {
      if (!removed) return std::unexpected(explain_key(removed.error()));
    }
    const auto flushed = store_.flush();
    return flushed ? Outcome{} : std::unexpected(explain_key(flushed.error()));
  }

  Store& store_;
  const Cell cell_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::string> keys_;
  std::vector<Put> puts_;
  std::array<QueueDepthMeter, 2> meters_;
  std::array<std::vector<std::uint64_t>, 2> times_us_;
};

// Slots freed by one round are reusable only after the flush, so two rounds' worth must fit.
bool fits(Store& store, const Cell& cell) {
  const Volume& volume = store.volume();
  const std::uint64_t slot_bytes = volume.geometry().slot_size_bytes;
  const std::uint64_t slots = (cell.value_size_bytes + slot_bytes - 1) / slot_bytes;
  const std::uint64_t free_bytes = volume.space().free_blocks * kBlockSizeBytes;
  return 2 * cell.n * slots * slot_bytes <= free_bytes;
}

Outcome run_cell(Store& store, const Cell& cell, const BenchArguments& arguments,
                 const BenchSetting& setting) {
  if (!fits(store, cell)) {
    fmt::print(stderr, "kvslot: skipped {} x {}: does not fit twice into the free space\n", cell.n,
               size_text(cell.value_size_bytes));
    return {};
  }
  CellRun run(store, cell, arguments.path);
  if (auto measured = run.measure(arguments.rounds); !measured) return measured;
  const std::uint64_t depth_max = store.volume().device().counters().queue_depth_max;
  for (const Mode mode : kModes) {
    const BenchRow row = run.row(mode, depth_max);
    fmt::print("{}", arguments.json ? json_row(row, setting) : table_row(row));
  }
  std::fflush(stdout);
  return {};
}

Outcome run_grid(Store& store, const BenchArguments& arguments) {
  const auto keys = store.list();
  if (!keys) return std::unexpected(explain_key(keys.error()));
  if (!keys->empty() && !arguments.force) {
    return std::unexpected(
        fmt::format("holds {} keys; give --force to run all the same, or "
                    "another store",
                    keys->size()));
  }
  if (store.volume().find(kKeyPrefix)) {
    return std::unexpected(fmt::format("holds {} already; remove or rename it", kKeyPrefix));
  }
  const DeviceInfo& device = store.volume().device().info();
  const BenchSetting setting{.engine = device.engine,
                             .ring_flags = device.engine_detail,
                             .device = device.name,
                             .is_direct = device.is_direct};
  if (!arguments.json) fmt::print("{}", table_head(setting));
  for (const Cell& cell : cells_of(arguments.grid)) {
    if (auto done = run_cell(store, cell, arguments, setting); !done) return done;
  }
  return {};
}

// What the run made, whether it went well or not.
void remove_traces(Store& store) {
  if (const auto keys = store.list(kKeyPrefix)) {
    std::vector<std::string_view> views;
    for (const ListedKey& key : *keys) views.push_back(key.key);
    store.remove_many(views);
  }
  // Not there when nothing was put.
  (void)store.volume().remove(NodeId::kRoot, kKeyPrefix, RemoveKind::kDirectory);
}

}  // namespace

int run_bench_put(const BenchArguments& arguments) {
  const auto store = open_store(arguments.path, Access::kWrite, kStagingSizeBytes);
  if (!store) return complain(arguments.path, store.error());
  const Outcome done = run_grid(**store, arguments);
  if (!done) complain(arguments.path, done.error());
  remove_traces(**store);
  const auto closed = (*store)->close();
  if (!closed) return complain(arguments.path, explain_store(closed.error()));
  return done ? kExitOk : kExitFailure;
}

}  // namespace kvslot::cli
