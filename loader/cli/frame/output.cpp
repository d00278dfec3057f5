// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/frame/output.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/join.hpp"
#include "base/quote.hpp"
#include "base/size.hpp"
#include "documents/json.hpp"
#include "install/resolution_json.hpp"
#include "kiln/error.hpp"
#include "settings/environment.hpp"

namespace kiln::cli {
namespace {

// Both are said once, before a command begins.
Results g_results = Results::kText;
std::string g_program = "kiln";

/// What stands at the foot of the terminal that stderr is; under g_mutex, as all that is printed.
std::mutex g_mutex;
std::vector<std::size_t> g_status;  // the columns of each of its lines

std::size_t terminal_width() {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

/// Of a line there. Three columns stay free: Ctrl-C is shown as two, and some terminals go to the
/// next line with the last.
std::size_t status_width() {
  constexpr std::size_t kFree = 3;
  return std::max<std::size_t>(terminal_width(), kFree + 1) - kFree;
}

/// What clears them, from the last line up. A terminal that became narrower has wrapped them.
std::string cleared_status() {
  const std::size_t width = terminal_width();
  std::size_t rows = 0;
  for (const std::size_t columns : g_status) {
    rows += std::max<std::size_t>(1, (columns + width - 1) / width);
  }
  g_status.clear();
  std::string text;
  for (std::size_t i = 0; i < rows; ++i) text += i == 0 ? "\r\x1b[K" : "\x1b[A\x1b[K";
  return text;
}

std::string formatted(const char* format, std::va_list arguments) {
  std::va_list again;
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, again);
  va_end(again);
  if (size < 0) return {};
  std::string text(static_cast<std::size_t>(size) + 1, '\0');
  std::vsnprintf(text.data(), text.size(), format, arguments);
  text.pop_back();
  return text;
}

/// `text` is fit for a terminal, or goes to none.
void put(std::FILE* to, const std::string& text) {
  const std::scoped_lock alone(g_mutex);
  const std::string cleared = cleared_status();
  std::fputs((to == stderr ? cleared + text : cleared).c_str(), stderr);
  if (to != stderr) std::fputs(text.c_str(), to);
}

/// Shows lines at the foot of the terminal in place of those before. print() and tell() take them
/// away first, so that they are never glued to what is said. In one write: Ctrl-C makes a terminal
/// drop what it has not shown yet, and half of the lines would leave the cursor nobody knows where.
void show_status(const std::vector<std::string>& lines) {
  const std::scoped_lock alone(g_mutex);
  std::string shown = cleared_status();
  for (const std::string& line : lines) {
    const std::string text = printable(line).substr(0, status_width());
    shown.append(g_status.empty() ? "" : "\n").append("\r\x1b[K").append(text);
    g_status.push_back(text.size());
  }
  std::fputs(shown.c_str(), stderr);
}

/// Whether what goes to this stream may have colours: https://no-color.org.
bool has_colours(int stream) {
  return isatty(stream) == 1 && environment().text("NO_COLOR").empty() &&
         environment().text("TERM") != "dumb";
}

constexpr const char* kRed = "\x1b[1;31m";
constexpr const char* kGreen = "\x1b[1;32m";
constexpr const char* kPlain = "\x1b[0m";

using Clock = std::chrono::steady_clock;

/// The downloads of one command.
class Progress {
 public:
  Progress() = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (terminal_) put(stderr, "");  // a command whose result goes elsewhere
  }

  void on_event(const Event& event) {
    if (event.stage == Event::Stage::kRetry) tell("retry: %s\n", event.note.c_str());
    if (event.stage == Event::Stage::kWait) tell("wait: %s\n", event.note.c_str());
    if (event.stage == Event::Stage::kCompile) tell("compile: %s\n", event.note.c_str());
    if (event.stage == Event::Stage::kWarning &&
        warned_.insert(event.subject + event.note).second) {
      tell("warning: %s says: %s\n", event.subject.c_str(), event.note.c_str());
    }
    if (event.stage < Event::Stage::kLayer && terminal_ && running_.empty()) {
      show_status({"asking for " + event.subject});  // a registry that is far away takes its time
    }
    if (event.stage != Event::Stage::kLayer || event.total == 0) return;
    if (event.done == event.total) {
      running_.erase(event.subject);
      tell("fetched %s, %s\n", event.subject.c_str(), size_text(event.total).c_str());
      return;
    }
    // What an earlier run had fetched does not count for this run's speed.
    Download& download = running_.try_emplace(event.subject, Download{event.done}).first->second;
    download.done = event.done;
    download.total = event.total;
    constexpr auto kRedraw = std::chrono::milliseconds(100);
    if (!terminal_ || Clock::now() - drawn_ < kRedraw) return;
    drawn_ = Clock::now();
    show_status(lines());
  }

 private:
  std::set<std::string> warned_;

  struct Download {
    std::uint64_t first = 0;
    std::uint64_t done = 0;
    std::uint64_t total = 0;
    Clock::time_point begun = Clock::now();
  };

  std::vector<std::string> lines() const {
    constexpr std::size_t kShown = 8;
    std::vector<std::string> lines;
    for (const auto& [subject, download] : running_) {
      if (lines.size() == kShown) {
        lines.push_back("and " + std::to_string(running_.size() - kShown) + " more");
        break;
      }
      lines.push_back(line(subject, download));
    }
    return lines;
  }

  /// " 45%  1.5 MB of 3.3 MB, 2.1 MB/s, 1 s left  geglu-mlp@1 cpu-x86-64-v3". Where that is too
  /// long, the sizes go first, then all but the percentage: the name says which one it is.
  static std::string line(const std::string& subject, const Download& download) {
    constexpr std::uint64_t kPercent = 100;
    std::string percent = std::to_string(download.done * kPercent / download.total) + "%";
    percent.insert(0, percent.size() < 4 ? 4 - percent.size() : 0, ' ');
    const std::string sizes = size_text(download.done) + " of " + size_text(download.total);
    std::string pace;
    const std::chrono::duration<double> elapsed = Clock::now() - download.begun;
    const double speed = elapsed.count() > 0
                             ? static_cast<double>(download.done - download.first) / elapsed.count()
                             : 0;
    if (speed >= 1) {
      const auto left =
          static_cast<std::uint64_t>(static_cast<double>(download.total - download.done) / speed);
      pace =
          size_text(static_cast<std::uint64_t>(speed)) + "/s, " + std::to_string(left) + " s left";
    }
    const std::string end = "  " + subject;
    const std::string all = sizes + (pace.empty() ? "" : ", " + pace);
    for (const std::string& facts : {all, pace}) {
      std::string text = percent;
      if (!facts.empty()) text.append("  ").append(facts);
      text += end;
      if (text.size() <= status_width()) return text;
    }
    return percent + end;
  }

  bool terminal_ = isatty(STDERR_FILENO) == 1;
  Clock::time_point drawn_;
  std::map<std::string, Download> running_;
};

}  // namespace

void name_program(const std::string& name) {
  g_program = name;
}

void print_results_as(Results results) {
  g_results = results;
}

void print(const char* format, ...) {
  if (g_results == Results::kJson) return;
  std::va_list arguments;
  va_start(arguments, format);
  put(stdout, printable_lines(formatted(format, arguments)));
  va_end(arguments);
}

void print_resolution(const std::string& text) {
  if (g_results == Results::kJson) return;
  const bool colours = has_colours(STDOUT_FILENO);
  std::string shown;
  for (const std::string_view line : split(text, '\n')) {
    const bool chosen = colours && line.starts_with("> ");
    shown.append(chosen ? kGreen : "").append(printable(line)).append(chosen ? kPlain : "");
    shown += '\n';
  }
  put(stdout, shown);
}

void tell(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  put(stderr, printable_lines(formatted(format, arguments)));
  va_end(arguments);
}

void tell_error(const std::string& text) {
  const bool colours = has_colours(STDERR_FILENO);
  put(stderr, std::string(colours ? kRed : "") + g_program + ":" + (colours ? kPlain : "") + " " +
                  printable_lines(text) + "\n");
}

std::function<void(const std::string&)> steps_on_stderr(bool quiet) {
  if (quiet) return [](const std::string&) {};
  return [](const std::string& line) { tell("%s: %s\n", g_program.c_str(), line.c_str()); };
}

void print_path(const std::filesystem::path& path) {
  if (g_results == Results::kJson) return;
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  put(stdout, (terminal ? printable(path.string()) : path.string()) + "\n");
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
  put(stdout, text + "\n");
}

void flush_result() {
  errno = 0;
  const bool streamed = static_cast<bool>(std::cout.flush());
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && streamed) return;
  if (errno == EBADF) return;  // whoever closed it meant nothing to be read
  const bool full = errno == ENOSPC || errno == EDQUOT;
  throw Error(
      ErrorCode::kCache,
      "write the result to stdout: " +
          (errno == 0 ? "not all of it was taken" : std::generic_category().message(errno)) +
          (full ? ". Make room where it goes" : ". Check where it goes") + ", and run it again");
}

}  // namespace kiln::cli
