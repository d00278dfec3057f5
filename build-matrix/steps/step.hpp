// SPDX-License-Identifier: Apache-2.0
//
// Step: one command of a build, with all that its result depends on. Before it: graph, which writes
// them down. After it: execute, which runs those whose result is not there. Plain values; pure.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::build {

/// In words of a command and of its environment: the folder that this run of it writes into. No
/// path has it, since none has a line break.
inline constexpr std::string_view kOut = "\n{out}\n";

/// A file that a step makes, as its command names it.
std::string made(const std::string& name);

struct Step {
  std::string kind;                           ///< "compile"
  std::string what;                           ///< "geglu-mlp/host/x86-64-v3/csrc+cpu_gemm.cpp.o"
  std::vector<std::string> command;           ///< its program's path comes first; no shell reads it
  std::vector<std::string> environment = {};  ///< "NAME=value": all that it gets, and TMPDIR
  std::string tool;  ///< digest of the program, and of what comes with it and is read unasked
  std::filesystem::path tool_folder = {};  ///< below it lies what comes with the program

  std::vector<std::filesystem::path> inputs;  ///< sources, and other steps' outputs
  /// Where what the inputs include is looked for: they are followed if there is a folder.
  std::vector<std::filesystem::path> searched = {};

  std::filesystem::path folder;          ///< where the outputs are put
  std::vector<std::string> outputs;      ///< their names there; the last one is put there last
  std::vector<std::string> absent = {};  ///< names that must not be there
  std::filesystem::path stamp;           ///< says what the outputs were made of
  bool operator==(const Step&) const = default;
};

/// The steps of a build so far.
struct StepList {
  std::vector<Step> list;

  /// One that is there already is not there twice. Throws Error(kBuild) where another one makes the
  /// same file.
  void add(Step step);

 private:
  std::map<std::filesystem::path, std::size_t> makers_;  // by what they make: places in the list
};

/// A file that a compiler may leave in kOut: what it read, as make has it. Each must be an input,
/// included by one, or the compiler's own.
inline constexpr std::string_view kReadList = "read.d";

/// The files of a make rule "target: file file …".
std::vector<std::filesystem::path> parse_read_list(std::string_view text);

/// What a linker's "undefined symbol" means for the author of a package; empty if it said nothing
/// of the kind.
std::string explain_undefined(std::string_view said);

}  // namespace kiln::build
