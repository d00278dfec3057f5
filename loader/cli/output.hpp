// SPDX-License-Identifier: Apache-2.0
//
// Output: all that a command says. Results go to stdout, as text or as JSON documents with a
// versioned "schema"; what is said beside them goes to stderr. Names, paths and errors hold text of
// registries and packages: nothing of it reaches a terminal as a control sequence.
#pragma once

#include <filesystem>
#include <string_view>

#include "documents/json_fwd.hpp"

namespace kiln {
struct Installed;  // install/install.hpp
}

namespace kiln::cli {

/// As std::printf, on stdout; the text is made printable, newlines stay.
[[gnu::format(printf, 1, 2)]] void print(const char* format, ...);

/// The same on stderr.
[[gnu::format(printf, 1, 2)]] void tell(const char* format, ...);

/// Shows one line at the foot of the terminal that stderr is, cut to its width, in place of the one
/// before. print() and tell() take it away first, so that it is never glued to what they say.
void show_status(std::string_view line);

/// A path on a line of its own, for $(…): its very bytes, unless a terminal gets them.
void print_path(const std::filesystem::path& path);

Json to_json(const Installed& installed);

/// Prints one document, indented, with {"schema": "kiln.<kind>/1"} added. In ASCII; bytes that are
/// not UTF-8, as a path may have them, become U+FFFD.
void print_json(std::string_view kind, Json document);

}  // namespace kiln::cli
