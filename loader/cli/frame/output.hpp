// SPDX-License-Identifier: Apache-2.0
//
// Output: all that a command says. Results go to stdout, as text or as JSON documents with a
// versioned "schema"; what is said beside them goes to stderr. Names, paths and errors hold text of
// registries and packages: nothing of it reaches a terminal as a control sequence.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "documents/json_fwd.hpp"
#include "kiln/event.hpp"

namespace kiln::cli {

/// What results are from now on: text, or with --json one document. A command makes both; of
/// print() and print_path(), or of print_json(), nothing is seen.
enum class Results { kText, kJson };
void print_results_as(Results results);

/// As std::printf, on stdout; the text is made printable, newlines stay.
[[gnu::format(printf, 1, 2)]] void print(const char* format, ...);

/// The same on stderr, whatever results are.
[[gnu::format(printf, 1, 2)]] void tell(const char* format, ...);

/// Whose errors and progress it is from now on: "kiln registry".
void name_program(const std::string& name);

/// An error's text on stderr, behind "kiln:", the program's name, which is red where colours are
/// wanted: on a terminal, unless $NO_COLOR is set or $TERM is "dumb".
void tell_error(const std::string& text);

/// A line on stderr behind the program's name. Nothing with --quiet.
std::function<void(const std::string&)> steps_on_stderr(bool quiet);

/// A resolution's text on stdout; the line of what was chosen, "> …", is green where colours are.
void print_resolution(const std::string& text);

/// What an install is doing, on stderr: one line for each finished download and for each request
/// that is made again; on a terminal also a line for each download that is under way, no wider than
/// it. Nothing with --quiet.
Observer progress_on_stderr(bool quiet);

/// A path on a line of its own, for $(…): its very bytes, unless a terminal gets them.
void print_path(const std::filesystem::path& path);

/// Prints one document, indented, with {"schema": "kiln.<kind>/1"} added. In ASCII; bytes that are
/// not UTF-8, as a path may have them, become U+FFFD.
void print_json(std::string_view kind, Json document);

/// The end of a command that went well. Throws kCache where stdout took less than was printed: a
/// full disk, say. A result that nobody could read counts as a failure.
void flush_result();

}  // namespace kiln::cli
