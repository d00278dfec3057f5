// SPDX-License-Identifier: Apache-2.0
//
// The scripts of `kiln completions`: each finds the command that was typed so far, then offers that
// command's words. Packages come from `kiln list`, which reads the cache alone.
#include <algorithm>
#include <functional>
#include <string>
#include <string_view>

#include "completions.hpp"

namespace kiln::cli {
namespace {

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}

void each_node(const Node& node, const std::function<void(const Node&)>& visit) {
  visit(node);
  for (const Node& child : node.children) each_node(child, visit);
}

/// Every way to a command: "'install'", "'cache gc'", joined by what the shell puts between
/// patterns.
std::string all_commands(const Node& root, std::string_view between) {
  std::vector<std::string> words;
  each_node(root, [&](const Node& node) {
    if (!node.words.empty()) words.push_back("'" + node.words + "'");
  });
  return joined(words, between);
}

std::string replace_all(std::string text, std::string_view what, std::string_view with) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
  return text;
}

/// A single-quoted word of a POSIX shell.
std::string single_quoted(const std::string& text) {
  return "'" + replace_all(text, "'", "'\\''") + "'";
}

std::string bash_action(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNone:
      return ":";
    case Value::Kind::kFolder:
      return "folders=1";
    case Value::Kind::kFile:
      return "files=1";
    case Value::Kind::kPackage:
      return "offer=$(kiln list 2>/dev/null | cut -d' ' -f1)";
    case Value::Kind::kWord:
      return "offer='" + joined(value.words, " ") + "'";
  }
  return ":";
}

std::string zsh_action(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNone:
      return "value:";
    case Value::Kind::kFolder:
      return "folder:_files -/";
    case Value::Kind::kFile:
      return "file:_files";
    case Value::Kind::kPackage:
      return "package:_kiln_packages";
    case Value::Kind::kWord:
      return "value:(" + replace_all(joined(value.words, " "), ":", "\\:") + ")";
  }
  return "value:";
}

std::string fish_action(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNone:
      return {};
    case Value::Kind::kFolder:
      return " -a '(__fish_complete_directories)'";
    case Value::Kind::kFile:
      return " -F";
    case Value::Kind::kPackage:
      return " -a '(__kiln_packages)'";
    case Value::Kind::kWord:
      return " -a '" + joined(value.words, " ") + "'";
  }
  return {};
}

/// One argument of zsh's _arguments for each name: "'--cache[Cache folder]:folder:_files -/'".
std::string zsh_flags(const Node& node) {
  std::string text;
  for (const Flag& flag : node.flags) {
    // Brackets and colons end the parts of such an argument.
    std::string summary = replace_all(replace_all(flag.summary, "[", "\\["), "]", "\\]");
    summary = replace_all(summary, ":", "\\:");
    for (const std::string& name : flag.names) {
      std::string argument = name;
      argument += "[" + summary + "]";
      if (flag.takes_value) argument += ":" + zsh_action(flag.value);
      text += " " + single_quoted(argument);
    }
  }
  return text;
}

}  // namespace

std::string bash_script(const Node& root) {
  std::string values;
  std::string words;
  each_node(root, [&](const Node& node) {
    std::vector<std::string> names;
    for (const Flag& flag : node.flags) {
      names.insert(names.end(), flag.names.begin(), flag.names.end());
      if (!flag.takes_value) continue;
      for (const std::string& name : flag.names) {
        values += "    '" + node.words + " " + name + "') " + bash_action(flag.value) + " ;;\n";
      }
    }
    std::vector<std::string> commands;
    for (const Node& child : node.children) commands.push_back(child.name);
    words += "    '" + node.words + "')\n      if [[ $word == -* ]]; then offer='" +
             joined(names, " ") + "'\n      else " +
             (commands.empty() ? bash_action(node.positional)
                               : "offer='" + joined(commands, " ") + "'") +
             "\n      fi ;;\n";
  });
  return "# bash completion for kiln; written by 'kiln completions bash'.\n"
         "_kiln() {\n"
         "  local line=${COMP_LINE:0:COMP_POINT} at='' offer='' folders='' files='' each kept\n"
         "  local word=${line##*[[:space:]]}\n"
         "  local -a before\n"
         "  read -ra before <<< \"${line%\"$word\"}\"\n"
         "  for each in \"${before[@]:1}\"; do\n"
         "    case \"${at:+$at }$each\" in\n"
         "      " +
         all_commands(root, "|") +
         ") at=\"${at:+$at }$each\" ;;\n"
         "    esac\n"
         "  done\n"
         "  case \"$at ${before[-1]}\" in\n" +
         values + "    *) case \"$at\" in\n" + words +
         "    esac ;;\n"
         "  esac\n"
         "  if [[ -n $folders ]]; then\n"
         "    compopt -o filenames 2>/dev/null\n"
         "    mapfile -t COMPREPLY < <(compgen -d -- \"$word\")\n"
         "  elif [[ -n $files ]]; then\n"
         "    compopt -o filenames 2>/dev/null\n"
         "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
         "  else\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$offer\" -- \"$word\")\n"
         "    # Readline ends a word at these, and replaces only what stands behind the last one.\n"
         "    kept=${word%\"${word##*[@:=]}\"}\n"
         "    COMPREPLY=(\"${COMPREPLY[@]#\"$kept\"}\")\n"
         "  fi\n"
         "}\n"
         "complete -F _kiln kiln\n";
}

std::string zsh_script(const Node& root) {
  std::string cases;
  each_node(root, [&](const Node& node) {
    cases += "    '" + node.words + "')\n";
    if (!node.children.empty()) {
      cases += "      if [[ $words[CURRENT] != -* ]]; then\n        commands=(";
      for (const Node& child : node.children) {
        cases += " " + single_quoted(child.name + ":" + replace_all(child.summary, ":", "\\:"));
      }
      cases += ")\n        _describe command commands\n        return\n      fi\n";
    }
    cases += "      _arguments" + zsh_flags(node);
    if (node.children.empty() && node.positional.kind != Value::Kind::kNone) {
      cases += " " + single_quoted("*:" + zsh_action(node.positional));
    }
    cases += " ;;\n";
  });
  return "#compdef kiln\n"
         "# zsh completion for kiln; written by 'kiln completions zsh'.\n"
         "_kiln_packages() {\n"
         "  local -a packages\n"
         "  packages=(${(f)\"$(kiln list 2>/dev/null | cut -d' ' -f1)\"})\n"
         "  compadd -a packages\n"
         "}\n"
         "_kiln() {\n"
         "  local at='' each\n"
         "  local -a commands\n"
         "  for each in \"${(@)words[2,CURRENT-1]}\"; do\n"
         "    case \"${at:+$at }$each\" in\n"
         "      (" +
         all_commands(root, "|") +
         ") at=\"${at:+$at }$each\"\n"
         "        shift words; (( CURRENT-- )) ;;\n"
         "    esac\n"
         "  done\n"
         "  case \"$at\" in\n" +
         cases +
         "  esac\n"
         "}\n"
         "# Autoloaded from $fpath this file is the function; sourced, it defines it.\n"
         "if [[ ${funcstack[1]} == _kiln ]]; then _kiln \"$@\"; else compdef _kiln kiln; fi\n";
}

std::string fish_script(const Node& root) {
  std::string lines;
  each_node(root, [&](const Node& node) {
    const std::string start =
        "complete -c kiln -n '__kiln_at " +
        (node.words.empty() ? std::string("\"\"") : "\"" + node.words + "\"") + "'";
    for (const Node& child : node.children) {
      lines += start + " -a " + child.name + " -d " + single_quoted(child.summary) + "\n";
    }
    for (const Flag& flag : node.flags) {
      lines += start;
      for (const std::string& name : flag.names) {
        lines += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (flag.takes_value)
        lines += (flag.value.kind == Value::Kind::kFile ? " -r" : " -x") + fish_action(flag.value);
      lines += " -d " + single_quoted(flag.summary) + "\n";
    }
    if (node.children.empty() && node.positional.kind != Value::Kind::kNone) {
      lines += start + fish_action(node.positional) + "\n";
    }
  });
  return "# fish completion for kiln; written by 'kiln completions fish'.\n"
         "function __kiln_packages\n"
         "    kiln list 2>/dev/null | cut -d' ' -f1\n"
         "end\n"
         "function __kiln_at\n"
         "    set -l at ''\n"
         "    for word in (commandline -opc)[2..]\n"
         "        set -l longer (string trim -- \"$at $word\")\n"
         "        if contains -- $longer " +
         all_commands(root, " ") +
         "\n"
         "            set at $longer\n"
         "        end\n"
         "    end\n"
         "    test \"$at\" = \"$argv\"\n"
         "end\n"
         "complete -c kiln -f\n" +
         lines;
}

}  // namespace kiln::cli
