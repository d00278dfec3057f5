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
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "documents/json.hpp"
#include "loader/cli/frame/commands.hpp"
#include "loader/cli/frame/complete.hpp"
#include "loader/cli/frame/man.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/frame/result.hpp"
#include "loader/cli/frame/usage.hpp"

namespace kiln::cli {
namespace {

void help(Command& command) {
  const auto words = std::make_shared<std::vector<std::string>>();
  command.app().add_option("command", *words, "Its words");
  command.example("", "what there is");
  command.example("cache gc", "what 'kiln cache gc' takes, and examples");
  command.runs([](const Options&) -> int {  // words_with_help has taken it where it stands first
    throw Error(ErrorCode::kUsage, "read 'kiln help': expected it first. Run 'kiln help COMMAND'");
  });
}

struct Row {
  const char* words;  // "cache gc" is the command gc of the group cache, whose row stands before it
  const char* summary;
  void (*declare)(Command&);  // null: a group, which does nothing without one of its commands
};

constexpr Row kCommands[] = {
    {"install", "Fetch, verify and unpack the variant for this machine", install},
    {"add", "Pin a kernel in kiln.lock, the newest version by default", add},
    {"remove", "Take a kernel out of kiln.lock", remove},
    {"update", "Move kiln.lock to the newest versions", update},
    {"outdated", "Say what is newer than kiln.lock, or than what is installed", outdated},
    {"uninstall", "Take kernels out of the cache", uninstall},
    {"search", "List the packages of a registry", search},
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
    {"info", "Describe a package: its versions, ops, variants and their sizes", info},
    {"cache", "Where the cache is, whether it is intact; repair it, empty it", nullptr},
    {"cache dir", "Print the cache folder", cache_dir},
    {"cache verify", "Hash everything that is installed", cache_verify},
    {"cache repair", "Remove what is damaged and fetch it again", cache_repair},
    {"cache gc", "Remove what nothing holds", cache_gc},
    {"login", "Say how to log in to a registry, and which login there is", login},
    {"host", "Print this machine's facts, for --host on another one", host},
    {"doctor", "Say what this machine is, what it would get, and what to fix", doctor},
    {"help", "Say what a command takes", help},
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
    {"new", "Write the folder of a package to start from", nullptr},
    {"registry", "Publish, push, export, list, check", nullptr},
};

bool is_beside(std::string_view word) {
  return std::ranges::any_of(kBeside, [&](const Row& row) { return row.words == word; });
}

/// `kiln new …` is `kiln-build new …`.
int run_beside(const std::string& word, char** argv) {
  const std::string name = word == "new" ? "build" : word;
  std::error_code hidden;  // where /proc is not mounted
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", hidden);
  const std::filesystem::path program = self.parent_path() / ("kiln-" + name);
  std::string path = program.string();
  if (word == name) ++argv;
  argv[0] = path.data();
  execv(path.c_str(), argv);
  if (errno == ENOENT || errno == ENOTDIR) {
    throw Error(
        ErrorCode::kNotFound,
        "kiln " + word + ": there is no " + path +
            "; that command comes with a build of Kiln's source, not with an installed loader");
  }
  throw Error(ErrorCode::kNotFound, "kiln " + word + ": run " + path + ": " +
                                        std::generic_category().message(errno) +
                                        ". Make it a program that this user may run on this "
                                        "machine: 'chmod +x " +
                                        path + "', or install Kiln anew");
}

/// A caller may close any of the three streams to read or print nothing. /dev/null takes its place,
/// so that what is printed does not end up in the next file that is opened.
void keep_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDWR);
  }
}

/// `kiln help cache gc` is `kiln cache gc --help`; `kiln help` alone is `kiln --help`.
std::vector<char*> words_with_help(int argc, char** argv) {
  static char asks[] = "--help";
  std::vector<char*> words(argv, argv + argc);
  const auto is = [&](std::size_t i, std::string_view word) {
    return i < words.size() && words[i] == word;
  };
  if (!is(1, "help") || is(2, "--help") || is(2, "-h")) return words;
  words.erase(words.begin() + 1);
  words.push_back(asks);
  return words;
}

/// Of each command of a group the first example that it gives.
std::string first_examples(const CLI::App& group) {
  std::string text = "Examples:";
  for (const CLI::App* command : group.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string footer = command->get_footer();
    const std::size_t begin = footer.find('\n');
    if (begin != std::string::npos)
      text += footer.substr(begin, footer.find('\n', begin + 1) - begin);
  }
  return text;
}

int run(int argc, char** argv) {
  const bool completes = asks_to_complete(argc, argv);
  // `kiln help cac<Tab>` offers what `kiln cac<Tab>` does.
  if (completes && argc > 3 && argv[2] == std::string_view("help")) {
    argv[2] = argv[1];
    ++argv;
    --argc;
  }
  if (completes && argc > 3 && argv[2] == std::string_view("new")) return run_beside("new", argv);
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
  for (const Row& row : kBeside) app.add_subcommand(row.words, row.summary)->group(kBuilders);
  if (completes) return complete(app, argc, argv, {installed_packages, known_variants});
  // Set last: a command starts with the footer that its parent has.
  for (CLI::App* group : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!group->get_subcommands({}).empty()) group->footer(first_examples(*group));
  }
  app.footer(
      "Examples:\n"
      "  kiln doctor                   what this machine is, and what to fix\n"
      "  kiln search                   the packages of the registry\n"
      "  kiln add geglu-mlp            the newest version, into kiln.lock\n"
      "  kiln install --locked         all that kiln.lock has\n\n"
      "'kiln COMMAND --help' has what a command takes, and examples.\n"
      "Exit codes: 2 usage, 3 no variant fits, 4 not found, 5 network, 6 integrity, 7 trust,\n"
      "8 lock, 9 cache, 10 offline, 11 needs a newer kiln, 12 load, 13 call, 14 device, 15 build,\n"
      "16 conflict, 130 cancelled, 1 a bug.");
  if (asks_for_man_pages(argc, argv)) {
    write_man_pages(app, argv[2]);
    return 0;
  }
  const auto fail = [&](const Error& error) {
    Error completed(error.code(), with_options(app, error.what()));
    if (asks_for_json(argc, argv)) print_results_as(Results::kJson);
    print_json("error", error_document(completed));
    return completed;
  };
  try {
    const std::optional<int> answered = parse(app, argc, argv);
    const int code = answered ? *answered : line.chosen();
    flush_result();
    return code;
  } catch (const Error& error) {
    throw fail(error);
  } catch (const std::filesystem::filesystem_error& error) {
    throw fail(file_error(error));
  }
}

}  // namespace
}  // namespace kiln::cli

int main(int argc, char** argv) {
  try {
    kiln::cli::keep_standard_streams();
    std::vector<char*> words = kiln::cli::words_with_help(argc, argv);
    words.push_back(nullptr);
    return kiln::cli::run(static_cast<int>(words.size()) - 1, words.data());
  } catch (const kiln::Error& error) {
    kiln::cli::tell_error(error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    std::fputs("kiln: there is not enough memory for this process: see 'ulimit -v'\n", stderr);
    return static_cast<int>(kiln::ErrorCode::kInternal);
  } catch (const std::exception& error) {
    kiln::cli::tell_error(std::string("internal error: ") + error.what());
    return static_cast<int>(kiln::ErrorCode::kInternal);
  }
}
