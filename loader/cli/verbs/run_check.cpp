// SPDX-License-Identifier: Apache-2.0
//
// The child's side of a check: loads the library of one variant and the check of its version, each
// from bytes that it has hashed, and writes a line of JSON for each case.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/draft.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "call/load.hpp"
#include "call/table.hpp"
#include "call/testing_copy.hpp"
#include "documents/check_file.hpp"
#include "documents/json.hpp"
#include "kiln/check.h"
#include "kiln/kernel.hpp"
#include "loader/cli/verbs/check_run.hpp"

namespace kiln::cli {
namespace {

constexpr std::size_t kMaxName = 80;
constexpr std::size_t kMaxText = 400;
constexpr std::uint64_t kMaxCheckBytes = 256 << 20;

[[noreturn]] void fail(ErrorCode code, const std::string& subject, const std::string& found) {
  throw Error(code, "run the check of " + subject + ": " + found);
}

/// From a sealed copy in memory; KILN_LOAD_MODE=path, where that is not allowed, takes the file.
kiln_check_fn load_check(const std::string& bytes, const std::filesystem::path& file,
                         const std::string& subject) {
  std::string path = file.string();
  if (chosen_load_mode(LoadMode::kMemory) == LoadMode::kMemory) {
    FileDescriptor copy = sealed_copy("check", file, "the check of " + subject,
                                      [&](const Sink& sink) { sink(bytes); });
    path = "/proc/self/fd/" + std::to_string(copy.release());  // stays open as long as the process
  }
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const entry = handle == nullptr ? nullptr : ::dlsym(handle, KILN_CHECK_SYMBOL);
  if (entry == nullptr) {
    const char* const why = ::dlerror();
    fail(ErrorCode::kLoad, subject,
         file.string() + " does not load: " + (why != nullptr ? why : "no reason given") +
             ". The package is broken: tell its publisher");
  }
  return reinterpret_cast<kiln_check_fn>(entry);
}

/// What the check is given: memory, copies, and where its cases go.
class CheckHost {
 public:
  CheckHost(Device device, int results, bool wants_values)
      : device_(device), results_(results), wants_values_(wants_values) {}

  static void* allocate(void* self, std::size_t bytes) {
    CheckHost& host = *static_cast<CheckHost*>(self);
    try {
      OwnedWorkspace memory(host.device_);
      void* const data = memory.reserve(bytes == 0 ? 1 : bytes).data;
      host.memory_.emplace(data, std::move(memory));
      return data;
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return nullptr;
    }
  }

  static void release(void* self, void* memory) {
    static_cast<CheckHost*>(self)->memory_.erase(memory);
  }

  static std::int32_t copy(void* self, void* to, const void* from, std::size_t bytes,
                           std::int32_t to_device) {
    try {
      copy_for_test(static_cast<CheckHost*>(self)->device_, to, from, bytes, to_device != 0);
      return 0;
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  }

  static void report(void* self, const kiln_check_case* one) {
    static_cast<CheckHost*>(self)->write(*one);
  }

  /// A line of JSON. Whoever reads it may be gone, and then there is nobody to tell.
  void write(const Json& line) const {
    if (try_write_all(results_, dump_json(line) + "\n") != 0) ::_exit(1);
  }

 private:
  void write(const kiln_check_case& one) const {
    const auto text = [](const char* given, std::size_t most) {
      return printable(std::string_view(given != nullptr ? given : "").substr(0, most));
    };
    Json line = {{"name", text(one.name, kMaxName)},
                 {"passed", one.passed != 0},
                 {"text", text(one.text, kMaxText)},
                 {"error", one.error},
                 {"bound", one.bound}};
    if (wants_values_ && one.found != nullptr && one.expected != nullptr) {
      line["code"] = one.dtype.code;
      line["bits"] = one.dtype.bits;
      line["count"] = one.count;
      write_values(one.found, one.count * (one.dtype.bits / 8));
      write_values(one.expected, one.count * sizeof(double));
    }
    write(line);
  }

  void write_values(const void* values, std::size_t bytes) const {
    const std::string_view text(static_cast<const char*>(values), bytes);
    write_all(STDIN_FILENO, text, "the values of the check");
  }

  Device device_;
  int results_;
  bool wants_values_;
  std::map<void*, OwnedWorkspace> memory_;
};

/// How long the ops of a package take, each call with the wait for it: its table, with functions of
/// ours in the place of run.
class TimedPackage {
 public:
  TimedPackage(const kiln_package& real, Device device)
      : table_(real), device_(device), anchor_(device) {
    current = this;
    for (std::uint32_t i = 0; i < real.op_count; ++i) {
      ops_.push_back({.op = &op_at(real, i)});
      if (i < kMostTimed) table_.op(i).run = runs(std::make_index_sequence<kMostTimed>())[i];
    }
  }

  const kiln_package& package() { return table_.package(); }

  void write(const CheckHost& host) {
    for (One& one : ops_) {
      host.write({{"op", one.op->name},
                  {"calls", one.seconds.size()},
                  {"seconds", median_of(one.seconds)}});
    }
  }

 private:
  static constexpr std::size_t kMostTimed = 32;
  struct One {
    const kiln_op* op;
    std::vector<double> seconds;  ///< of each call
  };
  using Run = std::int32_t (*)(const kiln_call*, kiln_error*);

  /// Of calls of a few microseconds: one during which the machine did something else is no time of
  /// the kernel.
  static double median_of(std::vector<double>& seconds) {
    if (seconds.empty()) return 0;
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    return *middle;
  }

  template <std::size_t... kIndex>
  static std::array<Run, kMostTimed> runs(std::index_sequence<kIndex...>) {
    return {[](const kiln_call* call, kiln_error* error) {
      return current->run(kIndex, call, error);
    }...};
  }

  std::int32_t run(std::size_t index, const kiln_call* call, kiln_error* error) {
    One& one = ops_[index];
    wait();
    const auto begin = std::chrono::steady_clock::now();
    const std::int32_t status = one.op->run(call, error);
    wait();
    if (status != KILN_OK) return status;
    one.seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    return status;
  }

  /// A copy to the device waits for all that was enqueued there.
  void wait() {
    if (device_.kind != Device::Kind::kCuda) return;
    const char byte = 0;
    copy_for_test(device_, anchor_.reserve(1).data, &byte, 1, true);
  }

  static inline TimedPackage* current = nullptr;  // C functions have no context of ours

  TableCopy table_;
  Device device_;
  OwnedWorkspace anchor_;
  std::vector<One> ops_;
};

struct ChildRequest {
  bool full = false;
  bool values = false;  ///< written to stdin, which is a file
  std::string check;    ///< of another version of the package
};

int run(const Options& options, const ChildRequest& asked) {
  // The results have the pipe for themselves; what the check prints goes to stderr.
  const FileDescriptor results(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  if (!results.valid() || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
    fail_file("use", "stdout", errno);
  const Spec& spec = options.specs.front();
  const Request request = options.request_for(spec);
  Install install(spec.name, request);
  install.source().settings.tested = Tested::kAny;
  Installed installed = install.run();
  const Package& package = installed.package;
  const Device device = installed.choice.resolution.device;
  const std::string file = check_file(package.config.needs.cpu.arch);
  Request of_check = request;
  if (!asked.check.empty()) of_check.version = parse_spec(asked.check).version;
  const DevFiles dev = Install(spec.name, of_check).run_dev();
  const kiln_check_fn check =
      load_check(read_dev_file(dev, file, kMaxCheckBytes), dev.folder / file, package.subject);
  const kiln_package& table = load_prepared(installed, request.load_mode);
  CheckHost host(device, results.get(), asked.values);
  kiln_check_host given{};
  given.struct_size = sizeof given;
  given.full = asked.full ? 1 : 0;
  given.wants_values = asked.values ? 1 : 0;
  std::optional<TimedPackage> timed;
  if (asked.values) timed.emplace(table, device);
  given.package = timed ? &timed->package() : &table;
  given.variant = package.variant.id.c_str();
  given.device = dl_device(device);
  given.context = &host;
  given.allocate = CheckHost::allocate;
  given.release = CheckHost::release;
  given.copy = CheckHost::copy;
  given.report = CheckHost::report;
  kiln_error error{};
  const std::int32_t status = check(&given, &error);
  if (timed) timed->write(host);
  if (status == KILN_OK) return 0;
  const ErrorCode code = failure_of(status, error);
  fail(code, package.subject, error.text);
}

}  // namespace

void run_check_verb(KernelCommand& command) {
  command.takes_kernel();
  const auto asked = std::make_shared<ChildRequest>();
  command.flag("--full", asked->full, "All cases");
  command.flag("--values", asked->values, "Write values to stdin, and times");
  command.option("--check", asked->check, "PACKAGE", "The version whose check it is");
  command.has_no_document();
  command.runs([asked](const Options& options) { return run(options, *asked); });
}

}  // namespace kiln::cli
