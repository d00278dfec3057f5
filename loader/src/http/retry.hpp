// SPDX-License-Identifier: Apache-2.0
//
// Retry: whether, and when, a request that failed is made again. Part of http; knows time and
// nothing of HTTP but Retry-After. One Tries is used by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/limits.hpp"
#include "kiln/error.hpp"
#include "kiln/event.hpp"

namespace kiln {

/// What a Retry-After header asks for, in seconds or as an HTTP date; at most 120 s. Nothing for a
/// negative number, a date in the past or anything else. Pure.
std::optional<std::chrono::seconds> parse_retry_after(std::string_view value, std::time_t now);

/// No whole answer came, through nothing that was decided: asking again may help.
class TryAgain final : public Error {
 public:
  TryAgain(const std::string& found, const std::string& next)
      : Error(ErrorCode::kNetwork, found + ". " + next), found_(found) {}

  const std::string& found() const { return found_; }  ///< without the next step
  std::optional<std::chrono::seconds> after = {};      ///< what the server asked for
  bool at_once = false;                                ///< without a pause
  int most_tries = 100;                                ///< fewer where another try rarely helps
  bool is_refused = false;                             ///< nobody listens there

 private:
  std::string found_;
};

/// The tries of one document or blob.
class Tries {
 public:
  using Clock = std::chrono::steady_clock;

  /// `more` is added to the limits' deadline.
  Tries(const Limits& limits, std::chrono::seconds more);

  Clock::time_point deadline() const { return deadline_; }

  /// How long to wait after a try that failed: what the server asked for, else a random time up to
  /// backoff * 2^n, at most 30 s, so that clients that failed together do not return together.
  /// Nothing if there were enough tries, or if the wait would end after the deadline. A try that
  /// has `grown`, that is, brought bytes that stay, does not count, nor do those before it.
  std::optional<std::chrono::milliseconds> next(const TryAgain& failure, bool grown = false);

  std::string summary() const;  ///< "3 tries in 1.2 s"

 private:
  Limits limits_;
  Clock::time_point start_;
  Clock::time_point deadline_;
  std::mt19937 random_;
  int failed_ = 0;  ///< since the last progress
  int tried_ = 0;   ///< in all
};

/// The time that a blob gets on top of Limits::deadline: a second for each 64 KiB (512 kbit/s).
constexpr std::chrono::seconds time_for(std::uint64_t bytes) {
  return std::chrono::seconds(static_cast<long>(bytes >> 16));
}

/// How long a registry is asked, who is told meanwhile, and who may stop it.
struct Patience {
  Limits limits = {};
  Observer on_event = {};     ///< told of each request that is made again, as Stage::kRetry
  std::stop_token stop = {};  ///< ends a wait or a transfer with kCancelled
  bool is_of_mirror = false;  ///< there is another place to ask: one that refuses is left
};

/// Calls `once` until it returns, but for what TryAgain says. `grown` is asked after a try that
/// failed: whether it brought bytes that stay. Throws kNetwork after enough tries.
void persist(const Patience& patience, std::string_view what, std::chrono::seconds more,
             const std::function<bool()>& grown,
             const std::function<void(Tries::Clock::time_point until)>& once);

/// Throws kCancelled; `what` names what was under way.
[[noreturn]] void fail_cancelled(const std::string& what);

}  // namespace kiln
