// SPDX-License-Identifier: Apache-2.0
#include "base/utc.hpp"

#include <chrono>
#include <cstdio>

namespace kiln {

std::optional<std::int64_t> parse_time(std::string_view text) {
  namespace chrono = std::chrono;
  constexpr std::string_view kForm = "0000-00-00T00:00:00Z";
  if (text.size() != kForm.size()) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kForm[i] == '0' ? !digit : text[i] != kForm[i]) return std::nullopt;
  }
  const auto number = [&](std::size_t at, std::size_t digits) {
    unsigned value = 0;
    for (const char c : text.substr(at, digits))
      value = value * 10 + static_cast<unsigned>(c - '0');
    return value;
  };
  const chrono::year_month_day day{chrono::year(static_cast<int>(number(0, 4))),
                                   chrono::month(number(5, 2)), chrono::day(number(8, 2))};
  const unsigned hour = number(11, 2);
  const unsigned minute = number(14, 2);
  const unsigned second = number(17, 2);
  if (!day.ok() || hour > 23 || minute > 59 || second > 60) return std::nullopt;
  return chrono::sys_seconds(chrono::sys_days(day)).time_since_epoch().count() +
         std::int64_t{hour} * 3600 + std::int64_t{minute} * 60 + second;
}

std::string to_text(std::int64_t time) {
  namespace chrono = std::chrono;
  const chrono::sys_seconds at{chrono::seconds(time)};
  const auto midnight = chrono::floor<chrono::days>(at);
  const chrono::year_month_day day(midnight);
  const chrono::hh_mm_ss clock(at - midnight);
  char text[64];
  std::snprintf(text, sizeof(text), "%04d-%02u-%02uT%02d:%02d:%02dZ", static_cast<int>(day.year()),
                static_cast<unsigned>(day.month()), static_cast<unsigned>(day.day()),
                static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()),
                static_cast<int>(clock.seconds().count()));
  return text;
}

}  // namespace kiln
