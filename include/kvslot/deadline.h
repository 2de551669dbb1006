// Calls that may hang in the kernel, for callers that may not.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace kvslot {

// Runs `call` on a thread of its own and waits for it, but not longer than the
// deadline (0: for ever). Where there is no thread to be had, it runs on the
// caller's.
//   returns  false when the time is over: the call goes on, so what it uses has
//   to be its own threads  in time, its thread is gone when this returns
[[nodiscard]] bool run_in_time(std::chrono::milliseconds deadline, std::function<void()> call);

// What `call` returns, or nothing when the time is over: it is destroyed then
// when it comes.
template <typename Call>
[[nodiscard]] auto answer_in_time(std::chrono::milliseconds deadline, Call call)
    -> std::optional<std::invoke_result_t<Call>> {
  const auto answer = std::make_shared<std::optional<std::invoke_result_t<Call>>>();
  if (!run_in_time(deadline, [answer, call = std::move(call)] { answer->emplace(call()); }))
    return std::nullopt;
  return std::move(*answer);
}

}  // namespace kvslot
