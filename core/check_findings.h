// Collects what the check finds, one line each, up to a number that people can still read.
#pragma once

#include <kvslot/admin.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

namespace kvslot {

// Threads: one thread at a time.
class Findings {
 public:
  explicit Findings(CheckReport& report) : report_(report) {}

  // The structure contradicts itself: nobody may write before that is settled.
  void error(std::string what) {
    report_.opens = false;
    value_error(std::move(what));
  }
  // A value is not what was written; all else is well.
  void value_error(std::string what) {
    report_.damaged = true;
    add(true, std::move(what), Remedy::kSalvage);
  }
  // Wrong, but what is right stands elsewhere in the store.
  void repairable(std::string what) {
    report_.damaged = true;
    add(true, std::move(what), Remedy::kRepair);
  }
  void remark(std::string what) { add(false, std::move(what), Remedy::kNone); }
  // Once, at the end: how many did not fit.
  void finish() {
    if (left_out_ == 0) return;
    report_.findings.push_back({.is_error = report_.damaged,
                                .what = std::to_string(left_out_) + " more like these",
                                .remedy = left_out_remedy_});
  }

 private:
  static constexpr std::size_t kFindingsMax = 1000;
  void add(bool is_error, std::string what, Remedy remedy) {
    if (report_.findings.size() < kFindingsMax) {
      report_.findings.push_back({.is_error = is_error, .what = std::move(what), .remedy = remedy});
    } else {
      ++left_out_;
      left_out_remedy_ = std::max(left_out_remedy_, remedy);
    }
  }

  CheckReport& report_;
  std::uint64_t left_out_ = 0;
  Remedy left_out_remedy_ = Remedy::kNone;
};

}  // namespace kvslot
