// Collects what the check finds, one line each, up to a number that people can still read.
#pragma once

#include <kvslot/admin.h>

#include <cstdint>
#include <string>
#include <utility>

namespace kvslot {

// Threads: one thread at a time.
class Findings {
 public:
  explicit Findings(CheckReport& report) : report_(report) {}

  void error(std::string what) {
    report_.damaged = true;
    add(true, std::move(what));
  }
  void remark(std::string what) { add(false, std::move(what)); }
  // Once, at the end: how many did not fit.
  void finish() {
    if (left_out_ == 0) return;
    report_.findings.push_back({report_.damaged, std::to_string(left_out_) + " more like these"});
  }

 private:
  static constexpr std::size_t kFindingsMax = 1000;
  void add(bool is_error, std::string what) {
    if (report_.findings.size() < kFindingsMax) {
      report_.findings.push_back({is_error, std::move(what)});
    } else {
      ++left_out_;
    }
  }

  CheckReport& report_;
  std::uint64_t left_out_ = 0;
};

}  // namespace kvslot
