// SPDX-License-Identifier: Apache-2.0
#include "completions.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "commands.hpp"

namespace kiln::cli {
namespace {

/// "FOLDER", "FOLDER|URL", "FILE", "PACKAGE", or words to choose from: "auto|cpu|cuda:N".
Value value_of(const std::string& type_name) {
  if (type_name.starts_with("FOLDER")) return {Value::Kind::kFolder, {}};
  if (type_name.starts_with("FILE")) return {Value::Kind::kFile, {}};
  if (type_name.starts_with("PACKAGE")) return {Value::Kind::kPackage, {}};
  if (type_name.find('|') != std::string::npos) {
    return {Value::Kind::kWord, CLI::detail::split(type_name, '|')};
  }
  return {};
}

Flag flag_of(const CLI::Option& option) {
  Flag flag{{}, option.get_description(), option.get_items_expected_max() > 0, {}};
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  if (flag.takes_value) flag.value = value_of(option.get_type_name());
  return flag;
}

Node node_of(const CLI::App& app, const std::string& words) {
  Node node{words, app.get_name(), app.get_description(), {}, {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      node.positional = value_of(option->get_type_name());
    } else {
      node.flags.push_back(flag_of(*option));
    }
  }
  for (const CLI::App* command : app.get_subcommands({})) {
    node.children.push_back(
        node_of(*command, words + (words.empty() ? "" : " ") + command->get_name()));
  }
  return node;
}

}  // namespace

Node command_tree(const CLI::App& root) {
  return node_of(root, "");
}

void completions(Command& command) {
  const auto shell = std::make_shared<std::string>();
  command.app()
      .add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}).description(""))
      ->type_name("bash|zsh|fish");
  command.example("bash > ~/.local/share/bash-completion/completions/kiln", "for one user");
  command.example("zsh > ~/.zfunc/_kiln", "a folder that is in $fpath");
  command.example("fish > ~/.config/fish/completions/kiln.fish", "");
  command.runs([shell, root = command.app().get_parent()](const Options&) {
    const Node tree = command_tree(*root);
    const std::string script = *shell == "bash"  ? bash_script(tree)
                               : *shell == "zsh" ? zsh_script(tree)
                                                 : fish_script(tree);
    std::fputs(script.c_str(), stdout);
    return 0;
  });
}

}  // namespace kiln::cli
