// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "output.hpp"

namespace kiln::cli {
namespace {

std::string size_text(std::uint64_t bytes) {
  constexpr double kKilobyte = 1000;
  const auto value = static_cast<double>(bytes);
  char text[32];
  if (value < kKilobyte) {
    std::snprintf(text, sizeof text, "%.0f B", value);
  } else if (value < kKilobyte * kKilobyte) {
    std::snprintf(text, sizeof text, "%.1f kB", value / kKilobyte);
  } else {
    std::snprintf(text, sizeof text, "%.1f MB", value / (kKilobyte * kKilobyte));
  }
  return text;
}

using Clock = std::chrono::steady_clock;

/// The downloads of one command.
class Progress {
 public:
  void on_event(const Event& event) {
    if (event.stage == Event::Stage::kRetry) tell("retry: %s\n", event.note.c_str());
    if (event.stage == Event::Stage::kWait) tell("wait: %s\n", event.note.c_str());
    if (event.stage != Event::Stage::kLayer || event.total == 0) return;
    if (event.done == event.total) {
      running_.erase(event.subject);
      tell("fetched %s, %s\n", event.subject.c_str(), size_text(event.total).c_str());
      return;
    }
    // What an earlier run had fetched is no speed of this one.
    Download& download = running_.try_emplace(event.subject, Download{event.done}).first->second;
    download.done = event.done;
    download.total = event.total;
    constexpr auto kRedraw = std::chrono::milliseconds(100);
    if (!terminal_ || Clock::now() - drawn_ < kRedraw) return;
    drawn_ = Clock::now();
    show_status(line());
  }

 private:
  struct Download {
    std::uint64_t first = 0;
    std::uint64_t done = 0;
    std::uint64_t total = 0;
    Clock::time_point begun = Clock::now();
  };

  /// " 45%  1.5 MB of 3.3 MB, 2.1 MB/s, 1 s left  geglu-mlp@1 cpu-x86-64-v3"
  std::string line() const {
    std::uint64_t done = 0;
    std::uint64_t total = 0;
    double speed = 0;
    for (const auto& [subject, download] : running_) {
      done += download.done;
      total += download.total;
      const std::chrono::duration<double> elapsed = Clock::now() - download.begun;
      if (elapsed.count() > 0) {
        speed += static_cast<double>(download.done - download.first) / elapsed.count();
      }
    }
    constexpr std::uint64_t kPercent = 100;
    std::string percent = std::to_string(done * kPercent / total) + "%";
    percent.insert(0, percent.size() < 3 ? 3 - percent.size() : 0, ' ');
    std::string text = percent + "  " + size_text(done) + " of " + size_text(total);
    if (speed >= 1) {
      const auto left = static_cast<std::uint64_t>(static_cast<double>(total - done) / speed);
      text += ", " + size_text(static_cast<std::uint64_t>(speed)) + "/s, " + std::to_string(left) +
              " s left";
    }
    return text + "  " +
           (running_.size() == 1 ? running_.begin()->first
                                 : std::to_string(running_.size()) + " downloads");
  }

  bool terminal_ = isatty(STDERR_FILENO) == 1;
  Clock::time_point drawn_;
  std::map<std::string, Download> running_;
};

}  // namespace

Observer progress_on_stderr(bool quiet) {
  if (quiet) return {};
  return
      [progress = std::make_shared<Progress>()](const Event& event) { progress->on_event(event); };
}

}  // namespace kiln::cli
