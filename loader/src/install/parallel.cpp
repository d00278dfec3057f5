// SPDX-License-Identifier: Apache-2.0
#include "install/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "http/retry.hpp"

namespace kiln {

void in_parallel(std::size_t count, std::size_t at_once, const std::stop_token& stop,
                 const std::function<void(std::size_t, const std::stop_token&)>& job) {
  std::stop_source ours;
  const std::stop_callback forward(stop, [&ours] { ours.request_stop(); });
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr first;
  const auto work = [&] {
    while (!ours.stop_requested()) {
      const std::size_t i = next++;
      if (i >= count) return;
      try {
        job(i, ours.get_token());
      } catch (...) {
        const std::scoped_lock held(mutex);
        if (!first) first = std::current_exception();
        ours.request_stop();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (std::size_t i = 1; i < std::min(at_once, count); ++i) others.emplace_back(work);
    } catch (const std::system_error&) {
      // No more threads to be had: those that are there do it all.
    }
    work();
  }
  if (first) std::rethrow_exception(first);
  if (next < count) fail_cancelled("download");
}

Observer one_at_a_time(Observer observer) {
  if (!observer) return {};
  return
      [observer = std::move(observer), mutex = std::make_shared<std::mutex>()](const Event& event) {
        const std::scoped_lock held(*mutex);
        observer(event);
      };
}

}  // namespace kiln
