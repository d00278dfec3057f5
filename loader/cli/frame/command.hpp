// SPDX-License-Identifier: Apache-2.0
//
// Command: one verb of a program while it is declared. A verb is a function in a file of its own
// and a row in its program's table (program.hpp). It declares what it takes, gives examples and
// says what runs; --help, completion and the manual page are made of that. What runs prints its
// result on stdout (with --json as one JSON document), progress on stderr, returns the exit code,
// and throws kiln::Error.
//
//   void describe(Command& command) {
//     const auto card = std::make_shared<std::filesystem::path>();
//     command.option("card", *card, "FILE", "CARD.md, in Markdown").required();
//     command.example("CARD.md", "the page that the author wrote");
//     command.runs([card](const Call& call) { …; return 0; });
//   }
//
// The name of an option is "-o,--output"; one without a dash is an argument. Its kind is what a
// shell offers: FOLDER, FILE, PACKAGE, VARIANT, or words to choose from ("auto|cpu"). Values
// outlive the parse: share them with what runs. The parser is CLI11, which only this folder
// includes.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kiln::cli {

/// What every command was asked.
struct Call {
  bool json = false;
  bool quiet = false;
  std::string command;  ///< "kiln cache gc"
};

class Option {
 public:
  explicit Option(CLI::Option& option) : option_(&option) {}

  Option& required();
  Option& once();  ///< of a list: one value at most
  /// Given twice, the second counts; without this, that is kUsage.
  Option& last_counts();
  Option& may_be_empty();  ///< without this an empty word is kUsage
  Option& not_with(const Option& other);
  /// kUsage for any other word. A shell is offered these.
  Option& one_of(const std::vector<std::string>& words);
  /// "a,b" is two values.
  Option& separated_by(char separator);
  /// Takes all words up to the next option.
  Option& many();
  /// May stand without its value.
  Option& value_is_optional();

  bool is_given() const;  ///< once the command runs

 private:
  CLI::Option* option_;
};

/// What a program's commands declare, gathered by run_program.
struct Declared {
  Call call;
  std::map<CLI::App*, std::function<int(const Call&)>> runs;
  std::set<CLI::App*> plain;  ///< commands without --json
};

class Command {
 public:
  Command(CLI::App& app, Declared& declared) : app_(app), declared_(declared) {}

  Option option(const std::string& names, std::string& value, const std::string& kind,
                const std::string& help);
  Option option(const std::string& names, std::filesystem::path& value, const std::string& kind,
                const std::string& help);
  /// Repeatable, one value each time; as an argument, any number of them.
  Option option(const std::string& names, std::vector<std::string>& values, const std::string& kind,
                const std::string& help);
  Option option(const std::string& names, std::vector<std::filesystem::path>& values,
                const std::string& kind, const std::string& help);

  /// A whole number, kUsage outside of `least` to `most`.
  template <std::integral Number>
  Option number(const std::string& names, Number& value, std::uint64_t least, std::uint64_t most,
                const std::string& help) {
    return number(
        names, [&value](std::uint64_t read) { value = static_cast<Number>(read); }, least, most,
        help);
  }

  Option flag(const std::string& names, bool& value, const std::string& help);

  /// One line under "Examples:" of --help: the words after the command, and what they do.
  void example(const std::string& words, const std::string& meaning);

  /// The command has no --json: what it prints is read by another program as it is.
  void has_no_document();

  void runs(std::function<int(const Call&)> run);

 private:
  Option number(const std::string& names, const std::function<void(std::uint64_t)>& store,
                std::uint64_t least, std::uint64_t most, const std::string& help);

  CLI::App& app_;
  Declared& declared_;
};

}  // namespace kiln::cli
