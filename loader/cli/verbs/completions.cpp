// SPDX-License-Identifier: Apache-2.0
//
// Completions: the script that has a shell ask `kiln __complete` what to offer.
#include <cstdio>
#include <memory>
#include <string>

#include "loader/cli/verbs/verbs.hpp"

namespace kiln::cli {
namespace {

constexpr const char* kBash =
    R"script(# bash completion for kiln; written by 'kiln completions bash'.
_kiln() {
  local line=${COMP_LINE:0:COMP_POINT} offer kept
  local word=${line##*[[:space:]]}
  local -a before
  read -ra before <<< "${line%"$word"}"
  offer=$(kiln __complete "${before[@]:1}" "$word" 2>/dev/null | cut -f1)
  case $offer in
    :folders)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
    :files)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    *)
      mapfile -t COMPREPLY < <(compgen -W "$offer" -- "$word")
      # Readline ends a word at these, and replaces only what stands behind the last one.
      kept=${word%"${word##*[@:=]}"}
      COMPREPLY=("${COMPREPLY[@]#"$kept"}") ;;
  esac
}
complete -F _kiln kiln
)script";

constexpr const char* kZsh =
    R"script(#compdef kiln
# zsh completion for kiln; written by 'kiln completions zsh'.
_kiln() {
  local -a offer
  offer=(${(f)"$(kiln __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  case "$offer[1]" in
    (:folders) _files -/ ;;
    (:files) _files ;;
    # A colon ends the word, its summary follows.
    (*) offer=("${(@)offer//:/\\:}")
        offer=("${(@)offer/$'\t'/:}")
        _describe kiln offer ;;
  esac
}
# Autoloaded from $fpath this file is the function; sourced, it defines it.
if [[ ${funcstack[1]} == _kiln ]]; then _kiln "$@"; else compdef _kiln kiln; fi
)script";

constexpr const char* kFish =
    R"script(# fish completion for kiln; written by 'kiln completions fish'.
function __kiln_complete
    set -l word (commandline -ct)
    set -l offer (kiln __complete (commandline -opc)[2..] "$word" 2>/dev/null)
    switch "$offer[1]"
        case :folders
            __fish_complete_directories "$word"
        case :files
            __fish_complete_path "$word"
        case '*'
            printf '%s\n' $offer
    end
end
complete -c kiln -f -a '(__kiln_complete)'
)script";

}  // namespace

void completions(KernelCommand& command) {
  const auto shell = std::make_shared<std::string>();
  command.option("shell", *shell, "", "bash, zsh or fish")
      .required()
      .one_of({"bash", "zsh", "fish"});
  command.has_no_document();
  command.example("bash > ~/.local/share/bash-completion/completions/kiln", "for one user");
  command.example("zsh > ~/.zfunc/_kiln", "a folder that is in $fpath");
  command.example("fish > ~/.config/fish/completions/kiln.fish", "");
  command.runs([shell](const Options&) {
    std::fputs(*shell == "bash" ? kBash : *shell == "zsh" ? kZsh : kFish, stdout);
    return 0;
  });
}

}  // namespace kiln::cli
