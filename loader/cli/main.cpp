// SPDX-License-Identifier: Apache-2.0
//
// kiln: parses the command line, calls one command, turns kiln::Error into text and exit code.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "commands.hpp"
#include "complete.hpp"
#include "documents/json.hpp"
#include "output.hpp"

namespace kiln::cli {
namespace {

struct Row {
  const char* words;  // "cache gc" is the command gc of the group cache, whose row stands before it
  const char* summary;
  void (*declare)(Command&);  // null: a group, which does nothing without one of its commands
};

constexpr Row kCommands[] = {
    {"install", "Fetch, verify and unpack the variant for this machine", install},
    {"resolve", "Say which variant this machine would get, and why not the others", resolve},
    {"lock", "Write kiln.lock: the digests of all variants, for every machine", lock},
    {"bundle", "Carry kernels to machines without a network, in one file", nullptr},
    {"bundle create", "Write kernels into one file, an OCI archive", bundle_create},
    {"bundle install", "Verify and unpack kernels out of such a file", bundle_install},
    {"trust", "Say whose signatures vouch for a registry's versions", nullptr},
    {"trust add", "Trust a registry by its root metadata, or as it is", trust_add},
    {"trust require", "Require that somebody signed what is installed", trust_require},
    {"trust list", "List the registries that are trusted, and their roots", trust_list},
    {"trust remove", "Trust a registry no longer", trust_remove},
    {"list", "List what is in the cache", list},
    {"path", "Print the file that get_kernel would load", path},
    {"info", "Describe a package: versions, variants, and its ops once installed", info},
    {"cache", "Where the cache is, whether it is intact; repair it, empty it", nullptr},
    {"cache dir", "Print the cache folder", cache_dir},
    {"cache verify", "Hash everything that is installed", cache_verify},
    {"cache repair", "Remove what is damaged and fetch it again", cache_repair},
    {"cache gc", "Remove what nothing holds", cache_gc},
    {"host", "Print this machine's facts, for --host on another one", host},
    {"doctor", "Say what this machine is, what it would get, and what to fix", doctor},
    {"completions", "Print the script that makes bash, zsh or fish complete kiln", completions},
};

void add_command(CLI::App& root, const Row& row, CommandLine& line) {
  const std::string words = row.words;
  const std::size_t space = words.find(' ');
  CLI::App& parent =
      space == std::string::npos ? root : *root.get_subcommand(words.substr(0, space));
  CLI::App& app = *parent.add_subcommand(
      space == std::string::npos ? words : words.substr(space + 1), row.summary);
  if (row.declare == nullptr) {
    app.require_subcommand(1);
    return;
  }
  Command command(app, line);
  row.declare(command);
}

/// `kiln build …` becomes kiln-build, beside this program, as git does.
constexpr Row kBeside[] = {
    {"bench", "Time the GeGLU MLP on this GPU", nullptr},
    {"build", "Compile packages", nullptr},
    {"registry", "Publish, push, export, list, check", nullptr},
};

bool is_beside(std::string_view word) {
  return std::ranges::any_of(kBeside, [&](const Row& row) { return row.words == word; });
}

int run_beside(const std::string& name, char** argv) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const std::filesystem::path program = self.parent_path() / ("kiln-" + name);
  std::string word = program.string();
  argv[1] = word.data();
  execv(word.c_str(), argv + 1);
  throw Error(
      ErrorCode::kNotFound,
      "kiln " + name + ": there is no " + word +
          "; that command comes with a build of Kiln's source, not with an installed loader");
}

/// Whoever closed one of the three streams meant nothing to be read or printed, not that what is
/// printed ends up in the next file that is opened.
void keep_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDWR);
  }
}

/// A result that nobody could read is no success.
void flush_result() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  const bool full = errno == ENOSPC || errno == EDQUOT;
  throw Error(ErrorCode::kCache,
              "write the result to stdout: " + std::generic_category().message(errno) +
                  (full ? ". Make room where it goes" : ". Check where it goes") +
                  ", and run it again");
}

/// The exit code where --help or --version was asked for; nothing where a command is to run.
std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& asked) {
    // 'kiln nosuch --help' asks for the help of what is not there.
    if (!app.remaining(true).empty()) throw usage_error(app, asked);
    return app.exit(asked);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    throw usage_error(app, error);
  }
  return std::nullopt;
}

int run(int argc, char** argv) {
  const bool completes = asks_to_complete(argc, argv);
  if (completes && argc > 3 && is_beside(argv[2])) std::swap(argv[1], argv[2]);
  if (argc > 1 && is_beside(argv[1])) return run_beside(argv[1], argv);
  // A file that grows over the limit of this process is an error of the write, which names it.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app(
      "Prebuilt GPU kernels: finds, verifies and installs the one binary for this machine.",
      "kiln");
  app.set_version_flag("--version", "kiln " KILN_VERSION);
  app.require_subcommand(1);
  CommandLine line;
  for (const Row& row : kCommands) add_command(app, row, line);
  for (const Row& row : kBeside) app.add_subcommand(row.words, row.summary)->group("Builders");
  if (completes) return complete(app, argc, argv, installed_packages);
  // Set last: a command starts with the footer that its parent has.
  app.footer(
      "'kiln COMMAND --help' has what a command takes, and examples.\n"
      "Exit codes: 2 usage, 3 no variant fits, 4 not found, 5 network, 6 integrity, 7 trust,\n"
      "8 lock, 9 cache, 10 offline, 11 needs a newer kiln, 12 load, 13 call, 14 device, 15 build,\n"
      "16 conflict, 130 cancelled, 1 a bug.");
  try {
    if (const std::optional<int> answered = parse(app, argc, argv)) return *answered;
    const int code = line.chosen();
    flush_result();
    return code;
  } catch (const Error& error) {
    // A command line that does not parse may not have come to its --json.
    if (std::count(argv, argv + argc, std::string_view("--json"))) print_results_as(Results::kJson);
    print_json("error", {{"code", std::string(to_string(error.code()))},
                         {"exit", static_cast<int>(error.code())},
                         {"message", error.what()}});
    throw;
  }
}

}  // namespace
}  // namespace kiln::cli

int main(int argc, char** argv) {
  try {
    kiln::cli::keep_standard_streams();
    return kiln::cli::run(argc, argv);
  } catch (const kiln::Error& error) {
    kiln::cli::tell("kiln: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    std::fputs("kiln: there is not enough memory for this process: see 'ulimit -v'\n", stderr);
    return static_cast<int>(kiln::ErrorCode::kInternal);
  } catch (const std::exception& error) {
    kiln::cli::tell("kiln: internal error: %s\n", error.what());
    return static_cast<int>(kiln::ErrorCode::kInternal);
  }
}
