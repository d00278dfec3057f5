// SPDX-License-Identifier: Apache-2.0
#include "http/retry.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>

#include "base/ascii.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLongestTold{120};
constexpr milliseconds kLongestBackoff{30'000};

std::string seconds_text(std::chrono::duration<double> time) {
  return fixed_text(time.count(), 1) + " s";
}

/// Sleeps. Throws kCancelled as soon as `stop` is asked for; `what` names what was under way.
void wait_for(milliseconds time, const std::stop_token& stop, const std::string& what) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock held(mutex);
  stopped.wait_for(held, stop, time, [] { return false; });
  if (stop.stop_requested()) fail_cancelled(what);
}

}  // namespace

std::optional<seconds> parse_retry_after(std::string_view value, std::time_t now) {
  if (value.empty()) return std::nullopt;
  if (std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    long long count = 0;
    const auto parsed = std::from_chars(value.data(), value.data() + value.size(), count);
    const bool huge = parsed.ec == std::errc::result_out_of_range;
    return huge ? kLongestTold : std::min(seconds(count), kLongestTold);
  }
  // libcurl's parser takes many spellings of a date; HTTP's three begin with a weekday.
  if (value.front() < 'A' || value.front() > 'Z') return std::nullopt;
  const std::time_t date = curl_getdate(std::string(value).c_str(), nullptr);
  if (date < now) return std::nullopt;
  return std::min(seconds(date - now), kLongestTold);
}

Tries::Tries(const Limits& limits, seconds more)
    : limits_(limits),
      start_(Clock::now()),
      deadline_(start_ + limits.deadline + more),
      random_(std::random_device{}()) {}

std::optional<milliseconds> Tries::next(const TryAgain& failure, bool grown) {
  ++tried_;
  failed_ = grown ? 0 : failed_ + 1;
  if (failed_ >= std::min(limits_.tries, failure.most_tries)) return std::nullopt;
  if (failure.at_once) return milliseconds(0);
  milliseconds most = limits_.backoff;
  for (int i = 1; i < failed_ && most < kLongestBackoff; ++i) most *= 2;
  most = std::min(most, kLongestBackoff);
  milliseconds wait(std::uniform_int_distribution<long>(0, most.count())(random_));
  if (failure.after) wait = *failure.after + milliseconds(wait.count() % limits_.backoff.count());
  if (Clock::now() + wait >= deadline_) return std::nullopt;
  return wait;
}

std::string Tries::summary() const {
  return std::to_string(tried_) + (tried_ == 1 ? " try in " : " tries in ") +
         seconds_text(Clock::now() - start_);
}

void persist(const Patience& patience, std::string_view what, seconds more,
             const std::function<bool()>& grown,
             const std::function<void(Tries::Clock::time_point until)>& once) {
  Tries tries(patience.limits, more);
  for (;;) {
    try {
      return once(tries.deadline());
    } catch (const TryAgain& failure) {
      auto wait = tries.next(failure, grown());
      if (patience.is_of_mirror && failure.is_refused) wait.reset();
      if (!wait) {
        throw Error(ErrorCode::kNetwork,
                    std::string(failure.what()) + " (gave up after " + tries.summary() + ")");
      }
      if (patience.on_event) {
        const std::string when =
            failure.at_once ? "once more from the start" : "again in " + seconds_text(*wait);
        patience.on_event(
            {Event::Stage::kRetry, std::string(what), 0, 0, failure.found() + "; " + when});
      }
      wait_for(*wait, patience.stop, "get " + std::string(what));
    }
  }
}

void fail_cancelled(const std::string& what) {
  throw Error(ErrorCode::kCancelled,
              what + ": stopped as asked. Run it again to go on; nothing half-done was installed");
}

}  // namespace kiln
