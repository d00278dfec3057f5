// SPDX-License-Identifier: Apache-2.0
//
// Usage: what is wrong with a command line that CLI11 does not parse, and what else a program has
// to say of an error, in Kiln's words. Under program and its like.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "documents/json_fwd.hpp"
#include "kiln/error.hpp"

namespace CLI {
class App;
}

namespace kiln::cli {

/// "kiln cache gc": the words that lead to a command.
std::string words_of(const CLI::App& app);

/// The command that a parsed line names: the last one of its words.
CLI::App& parsed_command(CLI::App& app);

/// Those below `app` that --help shows.
std::vector<const CLI::App*> shown_commands(const CLI::App& app);

/// The exit code where --help or --version was asked for, and is printed, or where only a group was
/// named, whose help is told; nothing where a command is to run. Throws kUsage: which word is not
/// known, what it may have been meant to be, and which --help to read.
std::optional<int> parse(CLI::App& app, int argc, char** argv);

/// The text of an error, in which each command of `app` that it says to run, 'kiln cache repair',
/// has those of the `carried` options that the parsed command was given: a --cache that was named
/// is the one to repair.
std::string with_options(CLI::App& app, const std::vector<const char*>& carried,
                         const std::string& text);

/// Whether the words ask for results in JSON. A command line that does not parse may not have come
/// to its --json.
bool asks_for_json(int argc, char** argv);

/// What a program says of a call of std::filesystem that threw: which path, and what to do.
Error file_error(const std::filesystem::filesystem_error& error);

/// The document of an error, kiln.error/1, but for its schema.
Json error_document(const Error& error);

}  // namespace kiln::cli
