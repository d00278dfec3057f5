// SPDX-License-Identifier: Apache-2.0
//
// Parallel: several downloads at once, a few at a time. Above install: each job opens what it needs
// itself, so that nothing below has to know of the others.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>

#include "kiln/event.hpp"

namespace kiln {

/// More connections of one client do not make a registry faster, and it may answer 429.
inline constexpr std::size_t kDownloadsAtOnce = 4;

/// Calls job(i, stop) for each i below `count`, on this thread and at most `at_once` - 1 others,
/// which have ended when this returns. The first job that throws stops those under way, keeps the
/// rest from beginning, and is what is thrown. kCancelled if `stop` kept any from beginning.
void in_parallel(std::size_t count, std::size_t at_once, const std::stop_token& stop,
                 const std::function<void(std::size_t, const std::stop_token&)>& job);

/// An observer for jobs that run at once: it is still called one call at a time.
Observer one_at_a_time(Observer observer);

}  // namespace kiln
