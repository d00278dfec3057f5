// SPDX-License-Identifier: Apache-2.0
//
// Completions: the tree of commands, as the parser has it, written down as a script for a shell.
// Pure: a tree in, text out, so that a new command or option is completed without a line here.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kiln::cli {

/// What a shell can offer for a value, read off its type_name.
struct Value {
  enum class Kind { kNone, kFolder, kFile, kPackage, kWord };
  Kind kind = Kind::kNone;
  std::vector<std::string> words;  ///< of kWord
};

struct Flag {
  std::vector<std::string> names;  ///< "-q", "--quiet"
  std::string summary;
  bool takes_value = false;
  Value value;
};

struct Node {
  std::string words;  ///< "cache gc"; empty for kiln itself
  std::string name;   ///< "gc"
  std::string summary;
  std::vector<Flag> flags;
  Value positional;
  std::vector<Node> children;
};

Node command_tree(const CLI::App& root);

std::string bash_script(const Node& root);
std::string zsh_script(const Node& root);
std::string fish_script(const Node& root);

}  // namespace kiln::cli
