// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/frame/man.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "loader/cli/frame/usage.hpp"

namespace kiln::cli {
namespace {

constexpr int kWords = 3;  // kiln __man FOLDER

/// Text as roff shows it: nothing of it is a request.
std::string roff(std::string_view text) {
  std::string shown;
  for (const char c : text) {
    const bool begins = shown.empty() || shown.back() == '\n';
    if (begins && (c == '.' || c == '\'')) shown += "\\&";
    if (c == '\\') {
      shown += "\\e";
    } else if (c == '-') {
      shown += "\\-";
    } else {
      shown += c;
    }
  }
  return shown;
}

/// "kiln-cache-gc"
std::string page_name(const CLI::App& app) {
  std::string name = words_of(app);
  std::ranges::replace(name, ' ', '-');
  return name;
}

std::string synopsis(const CLI::App& app) {
  std::string line = ".B " + roff(words_of(app)) + "\n[\\fIoptions\\fR]";
  if (!shown_commands(app).empty()) line += " \\fIcommand\\fR";
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const bool many = option->get_items_expected_max() > 1;
    const std::string name = "\\fI" + roff(option->get_name()) + "\\fR" + (many ? " ..." : "");
    line += option->get_required() ? " " + name : " [" + name + "]";
  }
  return line + "\n";
}

/// "--device auto|cpu|cuda:N", each name of it.
std::string heading(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames())
    names.push_back("\\fB" + roff("-" + name) + "\\fR");
  for (const std::string& name : option.get_lnames())
    names.push_back("\\fB" + roff("--" + name) + "\\fR");
  if (names.empty()) names.push_back("\\fI" + roff(option.get_name()) + "\\fR");
  std::string text = join(names);
  if (option.get_items_expected_max() > 0 && !option.get_type_name().empty()) {
    text += " \\fI" + roff(option.get_type_name()) + "\\fR";
  }
  return text;
}

/// "The bundle to write. Required. Not with --offline."
std::string meaning_of(const CLI::Option& option) {
  std::string text = option.get_description();
  if (option.get_required()) text += ". Required";
  std::set<std::string> excluded;  // CLI11 has them in the order of their addresses
  for (const CLI::Option* other : option.get_excludes()) excluded.insert(other->get_name());
  if (!excluded.empty()) text += ". Not with " + join(excluded);
  return text == option.get_description() ? text : text + ".";
}

std::string page(const CLI::App& app) {
  const std::string name = page_name(app);
  std::string title = name;
  for (char& c : title) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  std::string text =
      ".TH " + roff(title) + " 1 \"\" \"kiln " KILN_VERSION "\" \"Kiln\"\n.SH NAME\n" + roff(name) +
      " \\- " + roff(app.get_description()) + "\n.SH SYNOPSIS\n" + synopsis(app) + ".SH OPTIONS\n";
  for (const CLI::Option* option : app.get_options()) {
    text += ".TP\n" + heading(*option) + "\n" + roff(meaning_of(*option)) + "\n";
  }
  const std::vector<const CLI::App*> commands = shown_commands(app);
  if (!commands.empty()) text += ".SH COMMANDS\n";
  for (const CLI::App* command : commands) {
    text +=
        ".TP\n\\fB" + roff(words_of(*command)) + "\\fR\n" + roff(command->get_description()) + "\n";
  }
  constexpr std::string_view kExamples = "Examples:\n";
  std::string footer = app.get_footer();
  const bool examples = footer.starts_with(kExamples);
  if (examples) footer.erase(0, kExamples.size());
  if (!footer.empty()) {
    text += std::string(".SH ") + (examples ? "EXAMPLES" : "NOTES") + "\n.nf\n" + roff(footer) +
            "\n.fi\n";
  }
  if (app.get_parent() != nullptr) {
    text += ".SH \"SEE ALSO\"\n.BR " + roff(page_name(*app.get_parent())) + " (1)\n";
  }
  return text;
}

void write_below(const CLI::App& app, const std::filesystem::path& folder) {
  Draft draft(folder, ".man", folder / (page_name(app) + ".1"), 0666);
  draft.write(page(app));
  draft.publish();
  for (const CLI::App* command : shown_commands(app)) {
    // A program of its own knows its options.
    const std::string& group = command->get_group();
    if (group != kElsewhere && group != kInSource) write_below(*command, folder);
  }
}

}  // namespace

bool asks_for_man_pages(int argc, char** argv) {
  return argc == kWords && std::string_view(argv[1]) == "__man";
}

void write_man_pages(const CLI::App& root, const std::filesystem::path& folder) {
  make_folders(folder);
  write_below(root, folder);
}

}  // namespace kiln::cli
