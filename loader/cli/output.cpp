// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "install/trace.hpp"

namespace kiln::cli {
namespace {

Results g_results = Results::kText;  // said once, before a command begins
std::atomic<bool> g_status_shown = false;

void clear_status() {
  if (g_status_shown.exchange(false)) std::fputs("\r\x1b[K", stderr);
}

std::size_t terminal_width() {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

[[gnu::format(printf, 2, 0)]] void say(std::FILE* to, const char* format, std::va_list arguments) {
  std::va_list again;
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, again);
  va_end(again);
  if (size < 0) return;
  std::string text(static_cast<std::size_t>(size) + 1, '\0');
  std::vsnprintf(text.data(), text.size(), format, arguments);
  text.pop_back();
  clear_status();
  std::fputs(printable_lines(text).c_str(), to);
}

/// Shows one line at the foot of the terminal that stderr is, cut to its width, in place of the one
/// before. print() and tell() take it away first, so that it is never glued to what they say.
void show_status(std::string_view line) {
  // The last column stays free: some terminals go to the next line with it.
  const std::string text = printable(line).substr(0, terminal_width() - 1);
  g_status_shown = true;
  std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
}

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

void print_results_as(Results results) {
  g_results = results;
}

void print(const char* format, ...) {
  if (g_results == Results::kJson) return;
  std::va_list arguments;
  va_start(arguments, format);
  say(stdout, format, arguments);
  va_end(arguments);
}

void tell(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  say(stderr, format, arguments);
  va_end(arguments);
}

void print_path(const std::filesystem::path& path) {
  if (g_results == Results::kJson) return;
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  std::printf("%s\n", terminal ? printable(path.string()).c_str() : path.c_str());
}

Observer progress_on_stderr(bool quiet) {
  if (quiet) return {};
  return
      [progress = std::make_shared<Progress>()](const Event& event) { progress->on_event(event); };
}

void print_json(std::string_view kind, Json document) {
  if (g_results == Results::kText) return;
  constexpr int kIndent = 2;
  constexpr bool kAscii = true;
  const std::string text = with_schema(kind, std::move(document))
                               .dump(kIndent, ' ', kAscii, Json::error_handler_t::replace);
  std::printf("%s\n", text.c_str());
}

}  // namespace kiln::cli
