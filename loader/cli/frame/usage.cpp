// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/frame/usage.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/join.hpp"
#include "base/shell_word.hpp"
#include "documents/json.hpp"

namespace kiln::cli {
namespace {

/// Levenshtein: letters to insert, remove or replace.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({row[j], row[j + 1], diagonal}) + 1);
      row[j + 1] = std::min(row[j + 1], replaced);
    }
  }
  return row.back();
}

/// What can follow this command: the names of its commands, or its options.
std::vector<std::string> known_words(const CLI::App& app, bool options) {
  std::vector<std::string> words;
  if (options) {
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
    }
  } else {
    for (const CLI::App* command : app.get_subcommands({})) words.push_back(command->get_name());
  }
  return words;
}

/// Empty if no word is near enough to be meant: two letters off, and most of the word right.
std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  constexpr std::size_t kFarthest = 2;
  const auto far = [&word](const std::string& each) { return distance(word, each); };
  const auto best = std::ranges::min_element(known, {}, far);
  if (best == known.end() || far(*best) > std::min(kFarthest, word.size() / 3)) return {};
  return *best;
}

/// What Kiln calls a command of other tools; empty for any other word.
std::string kiln_word_for(std::string_view word) {
  static const std::map<std::string_view, const char*> kOurs = {
      {"clean", "kiln cache gc"},
      {"find", "kiln search"},
      {"gc", "kiln cache gc"},
      {"init", "kiln new"},
      {"logout", "docker logout"},
      {"ls", "kiln list"},
      {"man", "kiln help"},
      {"prune", "kiln cache gc"},
      {"publish", "kiln registry publish"},
      {"pull", "kiln install"},
      {"push", "kiln registry push"},
      {"rm", "kiln remove"},
      {"show", "kiln info"},
      {"sync", "kiln install --locked"},
      {"upgrade", "kiln update"},
      {"verify", "kiln cache verify"},
      {"version", "kiln --version"}};
  const auto found = kOurs.find(word);
  return found == kOurs.end() ? "" : found->second;
}

/// Whether somebody takes --json for an option that wants a file.
bool follows_json(int argc, char** argv, std::string_view word) {
  char** const end = argv + argc;
  char** const found = std::find(argv, end, std::string_view("--json"));
  return found != end && found + 1 != end && word == found[1];
}

Error usage_error(CLI::App& app, int argc, char** argv, const CLI::ParseError& error) {
  const CLI::App* const at = &parsed_command(app);
  const std::string words = words_of(*at);
  std::string found = error.what();
  constexpr std::string_view kTooOften = ": At Most 1 required but received ";
  if (const std::size_t at_most = found.find(kTooOften); at_most != std::string::npos) {
    found = found.substr(0, at_most) + " is given " + found.substr(at_most + kTooOften.size()) +
            " times, expected once";
  }
  // A word that nobody knows explains more than what CLI11 misses because of it.
  if (const std::vector<std::string> unknown = app.remaining(true); !unknown.empty()) {
    const std::string word = unknown.front().substr(0, unknown.front().find('='));
    const bool option = word.starts_with('-');
    const bool command = !option && !at->get_subcommands({}).empty();
    found = (option    ? "unknown option '"
             : command ? "unknown command '"
                       : "unexpected word '") +
            word + "'";
    const std::vector<std::string> known = known_words(*at, option);
    const std::string meant = nearest(word, known);
    if (const std::string here = command ? kiln_word_for(word) : ""; !here.empty()) {
      found += "; use '" + here + "'";
    } else if (follows_json(argc, argv, word)) {
      found += "; --json prints on stdout, as in '--json > " + shell_word(word) + "'";
    } else if (!meant.empty()) {
      found += "; did you mean " + meant + "?";
    } else if (command) {
      found += "; the commands are " + join(known);
    }
  }
  if (found.ends_with('.')) found.pop_back();
  return {ErrorCode::kUsage, "read '" + words + "': " + found +
                                 (found.ends_with('?') ? " Run '" : ". Run '") + words +
                                 " --help' for what it takes"};
}

/// The command that "cache repair --offline" names; null for words that name none.
const CLI::App* command_of(const CLI::App& app, std::string_view words) {
  const CLI::App* at = &app;
  for (const std::string_view word : split(words, ' ')) {
    const std::vector<const CLI::App*> below = at->get_subcommands({});
    if (below.empty()) break;
    const auto named =
        std::ranges::find(below, word, [](const CLI::App* each) { return each->get_name(); });
    if (named == below.end()) return nullptr;
    at = *named;
  }
  return at;
}

}  // namespace

std::string words_of(const CLI::App& app) {
  const CLI::App* const parent = app.get_parent();
  return parent == nullptr ? app.get_name() : words_of(*parent) + " " + app.get_name();
}

CLI::App& parsed_command(CLI::App& app) {
  CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

std::vector<const CLI::App*> shown_commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

std::string with_options(CLI::App& app, const std::vector<const char*>& carried,
                         const std::string& text) {
  const CLI::App* const parsed = &parsed_command(app);
  const std::string start = "'" + app.get_name() + " ";
  std::string completed;
  std::size_t at = 0;
  for (;;) {
    const std::size_t begin = text.find(start, at);
    const std::size_t end = begin == std::string::npos ? begin : text.find('\'', begin + 1);
    completed += text.substr(at, end == std::string::npos ? end : end - at);
    if (end == std::string::npos) return completed;
    const std::string words = text.substr(begin + start.size(), end - begin - start.size());
    const CLI::App* const command = command_of(app, words);
    for (const char* const option : carried) {
      if (words.ends_with("--help")) break;
      const CLI::Option* const given = parsed->get_option_no_throw(option);
      if (given == nullptr || given->count() == 0 || command == nullptr ||
          command->get_option_no_throw(option) == nullptr ||
          words.find(option) != std::string::npos) {
        continue;
      }
      completed.append(" ").append(option).append(" ").append(shell_word(given->results().front()));
    }
    completed += '\'';
    at = end + 1;
  }
}

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& asked) {
    // 'kiln nosuch --help' asks for the help of what is not there.
    if (!app.remaining(true).empty()) throw usage_error(app, argc, argv, asked);
    return app.exit(asked);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    const bool nothing_asked =
        parsed_command(app).get_require_subcommand_min() > 0 && app.remaining(true).empty();
    if (!nothing_asked || asks_for_json(argc, argv)) throw usage_error(app, argc, argv, error);
    std::fputs(app.help().c_str(),
               stderr);  // 'kiln', 'kiln cache': what there is, not what is wrong
    return static_cast<int>(ErrorCode::kUsage);
  }
  return std::nullopt;
}

bool asks_for_json(int argc, char** argv) {
  return std::count(argv, argv + argc, std::string_view("--json")) > 0;
}

Error file_error(const std::filesystem::filesystem_error& error) {
  const std::filesystem::path& path = error.path1().empty() ? error.path2() : error.path1();
  const bool missing = error.code() == std::errc::no_such_file_or_directory ||
                       error.code() == std::errc::not_a_directory;
  const std::string where = path.empty() ? "the current folder" : path.string();
  return {
      missing ? ErrorCode::kNotFound : ErrorCode::kCache,
      "use " + where + ": " + error.code().message() + ". " +
          (missing && !path.is_absolute() ? "Go to a folder that is there (cd), or check the path"
           : missing                      ? "Check the path"
                                          : "Give this user the right to it, or check its disk")};
}

Json error_document(const Error& error) {
  return {{"code", std::string(to_string(error.code()))},
          {"exit", static_cast<int>(error.code())},
          {"message", error.what()}};
}

}  // namespace kiln::cli
