// SPDX-License-Identifier: Apache-2.0
//
// The parent's side of a check: what is needed is installed, the child is started, and what it says
// is read within bounds.
#include "loader/cli/verbs/check_run.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/draft.hpp"
#include "base/process.hpp"
#include "base/quote.hpp"
#include "documents/check_file.hpp"
#include "documents/json.hpp"
#include "settings/environment.hpp"

namespace kiln::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxLine = 4096;   // of a case; its name and text are cut below that
constexpr std::size_t kMaxGroups = 256;  // names of cases that are told apart
constexpr std::size_t kMaxFailures = 5;  // that are shown
constexpr std::size_t kMaxSaid = 2000;   // of what the child says on stderr, its end
constexpr auto kGlance = std::chrono::milliseconds(200);  // how often a wait looks at Ctrl-C

double number_of(const Json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::infinity();
}

/// Takes the child's lines as they come.
class Lines {
 public:
  explicit Lines(CheckRun& run) : run_(run) {}

  void take(std::string_view bytes) {
    rest_ += bytes;
    for (std::size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n')) {
      read(std::string_view(rest_).substr(0, end));
      rest_.erase(0, end + 1);
    }
    if (rest_.size() > kMaxLine) fail("a line of more than 4096 bytes");
  }

 private:
  [[noreturn]] static void fail(const std::string& found) {
    throw Error(ErrorCode::kIntegrity, "the check wrote " + found);
  }

  void read(std::string_view line) {
    const Json json = parse_json(line, "what the check wrote");
    const JsonView view(json, "what the check wrote");
    if (view.has("op")) {
      run_.ops[view.at("op").string()] = {view.at("calls").unsigned_integer(),
                                          number_of(view.at("seconds").json())};
      return;
    }
    const std::string name = view.at("name").string();
    const bool passed = view.at("passed").boolean();
    ++run_.cases;
    run_.failed += passed ? 0 : 1;
    if (!passed && run_.failures.size() < kMaxFailures) {
      run_.failures.push_back(name + ": " + view.at("text").string());
    }
    if (view.has("count")) {
      run_.outputs.push_back({name, view.at("code").unsigned_integer(),
                              view.at("bits").unsigned_integer(),
                              view.at("count").unsigned_integer()});
    }
    if (run_.groups.size() >= kMaxGroups && !run_.groups.contains(name)) return;
    CheckGroup& group = run_.groups[name];
    ++group.cases;
    group.failed += passed ? 0 : 1;
    group.worst = std::max(group.worst, number_of(view.at("error").json()));
    group.bound = std::max(group.bound, number_of(view.at("bound").json()));
  }

  CheckRun& run_;
  std::string rest_;
};

/// Reads what is there; false at the end.
template <class Take>
bool read_some(const FileDescriptor& from, Take take) {
  char piece[4096];
  const ssize_t count = ::read(from.get(), piece, sizeof piece);
  if (count < 0 && errno == EINTR) return true;
  if (count <= 0) return false;
  take(std::string_view(piece, static_cast<std::size_t>(count)));
  return true;
}

std::vector<std::string> command_of(const CheckTarget& target, const CheckLimits& limits) {
  const Request& request = target.request;
  own_program("test " + target.spec.text());  // of which /proc/self/exe is the name that stays
  std::vector<std::string> words = {
      "/proc/self/exe", "run-check", target.spec.text(),        "--variant",
      request.variant,  "--device",  to_string(request.device), "--offline"};
  const auto add = [&words](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  add("--registry", request.registry);
  add("--from", request.from);
  add("--cache", request.cache.string());
  add("--lock", request.lock.string());
  if (target.check.version != target.spec.version) add("--check", target.check.text());
  if (limits.full) words.emplace_back("--full");
  if (limits.values) words.emplace_back("--values");
  return words;
}

std::string ended_by(int signal) {
  return std::string("signal ") + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
}

/// The file that the child gets as its stdin, to write values to.
FileDescriptor values_file(const CheckLimits& limits) {
  if (!limits.values) return {};
  FileDescriptor file(::memfd_create("kiln:values", MFD_CLOEXEC));
  if (!file.valid()) fail_file("make", "a file in memory", errno);
  return file;
}

/// One child under way.
class Running {
 public:
  Running(const CheckTarget& target, const CheckLimits& limits)
      : results_(make_pipe()),
        said_(make_pipe()),
        values_(values_file(limits)),
        child_(command_of(target, limits), environment().block(),
               {.in = limits.values ? values_.get() : Streams::kNothing,
                .out = results_.write.get(),
                .err = said_.write.get()}),
        lines_(run_),
        end_(Clock::now() + limits.time),
        limits_(limits) {
    results_.write = {};
    said_.write = {};
  }

  CheckRun finish(const std::stop_token& stop) {
    const Clock::time_point begin = Clock::now();
    try {
      read_all(stop);
      conclude();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) throw;
      run_.end = CheckEnd::kFailed;
      run_.problem = error.what();
    }
    run_.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    run_.values = std::move(values_);
    return std::move(run_);
  }

 private:
  void read_all(const std::stop_token& stop) {
    bool results = true;
    bool said = true;
    while (results || said) {
      if (stop.stop_requested()) throw Error(ErrorCode::kCancelled, "test: cancelled");
      if (Clock::now() >= end_) {
        out_of_time_ = true;
        return;
      }
      pollfd both[] = {{results ? results_.read.get() : -1, POLLIN, 0},
                       {said ? said_.read.get() : -1, POLLIN, 0}};
      if (::poll(both, 2, static_cast<int>(kGlance.count())) <= 0) continue;
      if (both[0].revents != 0) {
        results = read_some(results_.read, [&](std::string_view piece) { lines_.take(piece); });
      }
      if (both[1].revents != 0) {
        said = read_some(said_.read, [&](std::string_view piece) { keep_said(piece); });
      }
    }
  }

  void keep_said(std::string_view piece) {
    said_text_ += piece;
    if (said_text_.size() > kMaxSaid) said_text_.erase(0, said_text_.size() - kMaxSaid);
  }

  std::string after() const { return " after " + std::to_string(run_.cases) + " cases"; }

  void conclude() {
    if (out_of_time_) {
      run_.end = CheckEnd::kOutOfTime;
      run_.problem = "it did not end within " + std::to_string(limits_.time.count()) + " s" +
                     after() + ". If the machine is slow, give it more with --limit";
      return;
    }
    child_.wait();
    if (child_.was_killed()) {
      run_.end = CheckEnd::kCrashed;
      run_.problem = "it was ended by " + ended_by(child_.exit_status() - 128) + after();
    } else if (child_.exit_status() != 0) {
      run_.end = CheckEnd::kFailed;
      while (said_text_.ends_with('\n')) said_text_.pop_back();
      run_.problem = "it ended with code " + std::to_string(child_.exit_status()) + after() +
                     (said_text_.empty() ? "" : ": " + printable_lines(said_text_));
    }
  }

  Pipe results_;
  Pipe said_;
  FileDescriptor values_;
  Child child_;
  CheckRun run_;
  Lines lines_;
  Clock::time_point end_;
  CheckLimits limits_;
  bool out_of_time_ = false;
  std::string said_text_;
};

}  // namespace

CheckTarget find_target(const Request& request, const Spec& spec) {
  CheckTarget target;
  target.spec = spec;
  target.request = request;
  Install install(spec.name, target.request);
  install.source().settings.tested = Tested::kAny;
  target.installed = install.run();
  const Package& package = target.installed.package;
  install.check_installed(package);
  target.subject = package.subject;
  target.spec.version = package.config.version;
  target.check = target.spec;
  target.bytes_fetched = target.installed.traffic.bytes;
  target.request.version = package.config.version;
  target.request.variant = package.variant.id;
  target.request.device = target.installed.choice.resolution.device;
  return target;
}

bool brings_check(const CheckTarget& target) {
  const Config& config = target.installed.package.config;
  return std::ranges::find(config.dev_files, check_file(config.needs.cpu.arch),
                           &ArchiveFile::path) != config.dev_files.end();
}

void install_check(CheckTarget& target) {
  Install dev(target.spec.name, target.request);
  dev.run_dev();
  target.bytes_fetched += dev.source().traffic.bytes;
}

CheckRun run_check(const CheckTarget& target, const CheckLimits& limits,
                   const std::stop_token& stop) {
  return Running(target, limits).finish(stop);
}

int name_column(const CheckRun& run) {
  constexpr std::size_t kWidest = 48;
  std::size_t width = 0;
  for (const auto& [name, group] : run.groups) width = std::max(width, name.size());
  return static_cast<int>(std::min(width, kWidest));
}

TestRecord record_of(const CheckTarget& target, const CheckRun& run) {
  const Resolution& resolution = target.installed.choice.resolution;
  const Package& package = target.installed.package;
  TestRecord record = record_of_today(resolution.host, resolution.device);
  record.variant = package.variant.id;
  record.library = library_file(package.config).digest;
  record.manifest = package.variant.manifest.digest;
  const std::uint64_t unfinished = run.end == CheckEnd::kDone ? 0 : 1;
  record.cases = run.cases + unfinished;
  record.failed = run.failed + unfinished;
  for (const auto& [name, group] : run.groups) {
    if (group.bound > 0) record.worst[name] = group.worst;
  }
  return record;
}

}  // namespace kiln::cli
