// SPDX-License-Identifier: Apache-2.0
//
// Program: a table of verbs as a program of Kiln: kiln, kiln build, kiln registry. run_program is
// all that its main() is: it reads the command line, completes it for a shell, writes the manual
// pages, runs one command, and turns what that throws into text, a document and an exit code.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "loader/cli/frame/command.hpp"
#include "loader/cli/frame/complete.hpp"

namespace kiln::cli {

struct Verb {
  const char* words;  ///< "cache gc" is the verb gc of the group cache, whose row stands before it
  const char* summary;
  /// Empty: a group, which does nothing without one of its verbs.
  std::function<void(Command&)> declare;
  bool is_for_programs = false;  ///< no help shows it
};

/// A verb that another program has, beside this one: git's way.
struct VerbElsewhere {
  const char* word;
  const char* summary;
  const char* program;       ///< "kiln-build"; whose own verb it is unless it is called so
  bool is_packaged = false;  ///< whether it comes with an installed Kiln, too
};

struct Program {
  std::string name;  ///< as a user types it: "kiln registry"
  std::string summary;
  std::vector<Verb> verbs;
  std::function<void(Command&)> declare = {};  ///< what it does without a verb
  std::vector<VerbElsewhere> elsewhere = {};
  /// Options that the commands in an error's text take over: "--cache", of the cache to repair.
  std::vector<const char*> carried = {};
  std::string notes = {};  ///< the end of --help; empty: the first example of each verb
  Offers offers = {};
};

/// The exit code: that of the command, or the kiln::ErrorCode of what it threw. An error is told on
/// stderr behind the program's name, and with --json on stdout as a document.
int run_program(const Program& program, int argc, char** argv);

}  // namespace kiln::cli
