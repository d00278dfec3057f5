// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/frame/program.hpp"

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
#include <string_view>
#include <system_error>

#include "base/process.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "loader/cli/frame/man.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/frame/usage.hpp"

namespace kiln::cli {
namespace {

/// A caller may close any of the three streams to read or print nothing. /dev/null takes its place,
/// so that what is printed does not end up in the next file that is opened.
void keep_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDWR);
  }
}

/// The words of a command line, and the null pointer that ends them.
class Words {
 public:
  Words(int argc, char** argv) : words_(argv, argv + argc) { words_.push_back(nullptr); }

  std::size_t size() const { return words_.size() - 1; }
  bool is(std::size_t i, std::string_view word) const { return i < size() && words_[i] == word; }
  bool completes() const { return size() > 2 && is(1, "__complete"); }
  void drop(std::size_t i) { words_.erase(words_.begin() + static_cast<std::ptrdiff_t>(i)); }
  void add(char* word) { words_.insert(words_.end() - 1, word); }

  int argc() const { return static_cast<int>(size()); }
  char** argv() { return words_.data(); }

 private:
  std::vector<char*> words_;
};

/// 'kiln help cache gc' is 'kiln cache gc --help'; 'kiln help' alone is 'kiln --help'. A shell is
/// offered behind help what it is offered without.
void read_help(Words& words) {
  static char asks[] = "--help";
  if (words.completes()) {
    if (words.size() > 3 && words.is(2, "help")) words.drop(2);
  } else if (words.is(1, "help") && !words.is(2, "--help") && !words.is(2, "-h")) {
    words.drop(1);
    words.add(asks);
  }
}

/// `sample`: the words of a verb.
void help(Command& command, const std::string& sample) {
  const auto words = std::make_shared<std::vector<std::string>>();
  command.option("command", *words, "", "Its words");
  command.has_no_document();
  command.example("", "what there is");
  command.example(sample, "what '" + sample + "' takes, and examples");
  command.runs([words](const Call& call) -> int {  // read_help takes it where it stands first
    throw Error(ErrorCode::kUsage,
                "read '" + call.command + "': expected it first. Run '" + call.command + "'");
  });
}

int run_elsewhere(const VerbElsewhere& verb, const std::string& name, char** argv) {
  const std::filesystem::path self = own_program(name + " " + verb.word);
  std::string path = (self.parent_path() / verb.program).string();
  argv[0] = path.data();
  ::execv(path.c_str(), argv);
  if (errno == ENOENT || errno == ENOTDIR) {
    throw Error(ErrorCode::kNotFound,
                name + " " + verb.word + ": there is no " + path +
                    (verb.is_packaged
                         ? ", which comes with each package of Kiln and each build of its source. "
                           "Install Kiln anew"
                         : "; that command comes with a build of Kiln's source, not with an "
                           "installed loader"));
  }
  throw Error(ErrorCode::kNotFound, name + " " + verb.word + ": run " + path + ": " +
                                        std::generic_category().message(errno) +
                                        ". Make it a program that this user may run on this "
                                        "machine: 'chmod +x " +
                                        shell_word(path) + "', or install Kiln anew");
}

/// Becomes the other program where the words name a verb of it; else comes back.
void run_elsewhere(const Program& program, Words& words) {
  const std::size_t place = words.completes() && words.size() > 3 ? 2 : 1;
  for (const VerbElsewhere& verb : program.elsewhere) {
    if (!words.is(place, verb.word)) continue;
    // "kiln-build" is called build, and gets the words behind; "new" is a verb of it.
    if (std::string_view(verb.program).ends_with(std::string("-") + verb.word)) words.drop(place);
    run_elsewhere(verb, program.name, words.argv());
  }
}

void add_verb(CLI::App& root, const Verb& verb, Declared& declared) {
  const std::string words = verb.words;
  const std::size_t space = words.find(' ');
  CLI::App& parent =
      space == std::string::npos ? root : *root.get_subcommand(words.substr(0, space));
  CLI::App& app = *parent.add_subcommand(
      space == std::string::npos ? words : words.substr(space + 1), verb.summary);
  app.footer("");  // a command starts with the one that its parent has
  if (verb.is_for_programs) app.group("");
  if (!verb.declare) {
    app.require_subcommand(1);
    return;
  }
  Command command(app, declared);
  verb.declare(command);
}

/// What every command takes.
void add_common(CLI::App& app, Declared& declared) {
  app.add_flag("-q,--quiet", declared.call.quiet, "No progress on stderr");
  if (declared.plain.contains(&app)) return;
  app.add_flag("--json", declared.call.json, "One JSON document on stdout");
}

/// Of each command of a group the first example that it gives.
std::string first_examples(const CLI::App& group) {
  std::string text = "Examples:";
  for (const CLI::App* command : shown_commands(group)) {
    const std::string footer = command->get_footer();
    const std::size_t begin = footer.find('\n');
    if (begin == std::string::npos) continue;
    text += footer.substr(begin, footer.find('\n', begin + 1) - begin);
  }
  return text;
}

/// The last verb of two words, where there is one: what help of a group's verb looks like.
std::string sample_of(const std::vector<Verb>& verbs) {
  const auto found = std::find_if(verbs.rbegin(), verbs.rend(), [](const Verb& verb) {
    return std::string_view(verb.words).find(' ') != std::string_view::npos;
  });
  return found == verbs.rend() ? verbs.front().words : found->words;
}

/// The verbs of a program as CLI11 reads them.
class Surface {
 public:
  explicit Surface(const Program& program) : app_(program.summary, program.name) {
    app_.set_version_flag("--version", program.name + " " KILN_VERSION);
    if (program.declare) {
      Command command(app_, declared_);
      program.declare(command);
    } else {
      app_.require_subcommand(1);
    }
    for (const Verb& verb : program.verbs) add_verb(app_, verb, declared_);
    if (!program.declare) {
      const auto helped = [&](Command& command) { help(command, sample_of(program.verbs)); };
      add_verb(app_, {"help", "Say what a command takes", helped}, declared_);
    }
    for (const VerbElsewhere& verb : program.elsewhere) {
      app_.add_subcommand(verb.word, verb.summary)
          ->group(verb.is_packaged ? kElsewhere : kInSource);
    }
    for (const auto& [app, run] : declared_.runs) add_common(*app, declared_);
    for (CLI::App* group : app_.get_subcommands([](const CLI::App*) { return true; })) {
      if (!shown_commands(*group).empty()) group->footer(first_examples(*group));
    }
    if (!program.notes.empty() || !program.declare) {
      app_.footer(program.notes.empty() ? first_examples(app_) : program.notes);
    }
  }

  CLI::App& app() { return app_; }

  int run(int argc, char** argv) {
    if (const std::optional<int> answered = parse(app_, argc, argv)) return *answered;
    CLI::App& named = parsed_command(app_);
    Call call = declared_.call;
    call.command = words_of(named);
    print_results_as(call.json ? Results::kJson : Results::kText);
    return declared_.runs.at(&named)(call);
  }

 private:
  CLI::App app_;
  Declared declared_;
};

/// A document would name another file than the one that is written: JSON is UTF-8.
void check_can_be_json(int argc, char** argv) {
  if (!asks_for_json(argc, argv)) return;
  const auto found = std::find_if_not(argv + 1, argv + argc, &is_utf8);
  if (found == argv + argc) return;
  throw Error(ErrorCode::kUsage, quote(*found) +
                                     " is not UTF-8, as a document is that may name it. Leave "
                                     "--json out, or take another name");
}

int run(const Program& program, Words words) {
  if (!program.declare) read_help(words);
  run_elsewhere(program, words);
  Surface surface(program);
  const int argc = words.argc();
  char** const argv = words.argv();
  if (words.completes()) return complete(surface.app(), argc, argv, program.offers);
  if (asks_for_man_pages(argc, argv)) {
    write_man_pages(surface.app(), argv[2]);
    return 0;
  }
  const auto fail = [&](const Error& error) {
    Error completed(error.code(), with_options(surface.app(), program.carried, error.what()));
    if (asks_for_json(argc, argv)) print_results_as(Results::kJson);
    print_json("error", error_document(completed));
    return completed;
  };
  try {
    check_can_be_json(argc, argv);
    const int code = surface.run(argc, argv);
    flush_result();
    return code;
  } catch (const Error& error) {
    throw fail(error);
  } catch (const std::filesystem::filesystem_error& error) {
    throw fail(file_error(error));
  }
}

}  // namespace

int run_program(const Program& program, int argc, char** argv) {
  name_program(program.name);
  try {
    keep_standard_streams();
    // A file that grows over the limit of this process is an error of the write, which names it.
    std::signal(SIGXFSZ, SIG_IGN);
    return run(program, Words(argc, argv));
  } catch (const Error& error) {
    tell_error(error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: there is not enough memory for this process: see 'ulimit -v'\n",
                 program.name.c_str());
  } catch (const std::exception& error) {
    tell_error(std::string("internal error: ") + error.what());
  }
  return static_cast<int>(ErrorCode::kInternal);
}

}  // namespace kiln::cli
