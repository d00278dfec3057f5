// SPDX-License-Identifier: Apache-2.0
//
// Usage: what is wrong with a command line that CLI11 does not parse, and what else a program has
// to say of an error, in Kiln's words. For each program of Kiln that has a command line.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "documents/json_fwd.hpp"
#include "kiln/error.hpp"

namespace CLI {
class App;
}

namespace kiln::cli {

/// The exit code where --help or --version was asked for, and is printed, or where only a group was
/// named, whose help is told; nothing where a command is to run. Throws kUsage: which word is not
/// known, what it may have been meant to be, and which --help to read.
std::optional<int> parse(CLI::App& app, int argc, char** argv);

/// The word as a shell reads it back.
std::string shell_word(const std::string& word);

/// The text of an error, in which each command of `app` that it says to run, 'kiln cache repair',
/// has the --cache, --registry and --lock that the parsed command was given: a cache that was named
/// is the one to repair.
std::string with_options(const CLI::App& app, const std::string& text);

/// Whether the words ask for results in JSON. A command line that does not parse may not have come
/// to its --json.
bool asks_for_json(int argc, char** argv);

/// What a program says of a call of std::filesystem that threw: which path, and what to do.
Error file_error(const std::filesystem::filesystem_error& error);

/// The document of an error, kiln.error/1, but for its schema.
Json error_document(const Error& error);

/// The exit code of a program that is `run` alone. What it throws is told on stderr behind the
/// program's name, and with --json on stdout as a document.
int run_program(const char* name, int argc, char** argv, const std::function<int()>& run);

}  // namespace kiln::cli
