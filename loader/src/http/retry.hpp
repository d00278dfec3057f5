// SPDX-License-Identifier: Apache-2.0
//
// Retry: whether, and when, a request that failed is made again. Part of fetch; knows time and
// nothing of HTTP but Retry-After. One Tries is used by one thread.
#pragma once

#include <chrono>
#include <ctime>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <string_view>

#include "settings/settings.hpp"

namespace kiln {

/// What a Retry-After header asks for, in seconds or as an HTTP date; at most 120 s. Nothing for a
/// negative number, a date in the past or anything else. Pure.
std::optional<std::chrono::seconds> parse_retry_after(std::string_view value, std::time_t now);

/// The tries of one document or blob.
class Tries {
 public:
  using Clock = std::chrono::steady_clock;

  /// `more` is added to the limits' deadline.
  Tries(const Limits& limits, std::chrono::seconds more);

  Clock::time_point deadline() const { return deadline_; }

  /// A try brought bytes that stay: those that failed before it do not count any more.
  void progress() { failed_ = 0; }

  /// How long to wait after a try that failed: what the server told, else a random time up to
  /// backoff * 2^n, at most 30 s, so that clients that failed together do not return together.
  /// Nothing if there were enough tries, or if it would end after the deadline.
  std::optional<std::chrono::milliseconds> next(std::optional<std::chrono::seconds> told);

  std::string told() const;  ///< "3 tries in 1.2 s"

 private:
  Limits limits_;
  Clock::time_point start_;
  Clock::time_point deadline_;
  std::mt19937 random_;
  int failed_ = 0;  ///< since the last progress
  int tried_ = 0;   ///< in all
};

/// Sleeps. Throws kCancelled as soon as `stop` is asked for; `what` names what was under way.
void wait_for(std::chrono::milliseconds time, const std::stop_token& stop, const std::string& what);

[[noreturn]] void fail_cancelled(const std::string& what);

}  // namespace kiln
