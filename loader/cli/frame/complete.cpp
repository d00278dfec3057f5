// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/frame/complete.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "loader/cli/frame/usage.hpp"

namespace kiln::cli {
namespace {

constexpr int kFirstWord = 2;  // behind the program and __complete

void offer(const std::string& word, const std::string& summary = "") {
  std::printf("%s%s%s\n", word.c_str(), summary.empty() ? "" : "\t", summary.c_str());
}

void offer_flags(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_snames()) {
      offer("-" + name, option->get_description());
    }
    for (const std::string& name : option->get_lnames()) {
      offer("--" + name, option->get_description());
    }
  }
}

/// "FOLDER", "FOLDER|URL", "FILE", "PACKAGE", "VARIANT", or words to choose from:
/// "auto|cpu|cuda:N".
void offer_value(const CLI::Option& option, const Offers& offers,
                 const std::vector<std::string>& before) {
  const std::string type = option.get_type_name();
  if (type.starts_with("FOLDER")) {
    offer(":folders");
  } else if (type.starts_with("FILE")) {
    offer(":files");
  } else if (type.starts_with("PACKAGE")) {
    if (!offers.packages) return;
    for (const std::string& package : offers.packages()) offer(package);
  } else if (type.starts_with("VARIANT")) {
    if (!offers.variants) return;
    for (const std::string& variant : offers.variants(before)) offer(variant);
  } else if (type.find('|') != std::string::npos) {
    for (const std::string& word : CLI::detail::split(type, '|')) offer(word);
  }
}

}  // namespace

int complete(const CLI::App& root, int argc, char** argv, const Offers& offers) {
  const CLI::App* at = &root;
  const CLI::Option* valued = nullptr;  // its value is the next word
  const std::vector<std::string> before(argv + kFirstWord, argv + argc - 1);
  for (const std::string& word : before) {
    const CLI::Option* const option = valued ? nullptr : at->get_option_no_throw(word);
    valued = option && option->get_items_expected_max() > 0 ? option : nullptr;
    for (const CLI::App* command : shown_commands(*at)) {
      if (command->get_name() == word) at = command;
    }
  }
  if (valued) {
    offer_value(*valued, offers, before);
  } else if (argv[argc - 1][0] == '-') {
    offer_flags(*at);
  } else if (const auto commands = shown_commands(*at); !commands.empty()) {
    for (const CLI::App* command : commands) offer(command->get_name(), command->get_description());
  } else {
    for (const CLI::Option* option : at->get_options()) {
      if (option->get_positional()) offer_value(*option, offers, before);
    }
  }
  return 0;
}

}  // namespace kiln::cli
