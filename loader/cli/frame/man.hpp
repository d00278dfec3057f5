// SPDX-License-Identifier: Apache-2.0
//
// Man: manual pages out of the declarations that --help is made of: kiln.1, kiln-install.1,
// kiln-cache-gc.1. The build calls `kiln __man FOLDER`; people read them with 'man kiln-install'.
#pragma once

#include <filesystem>

namespace CLI {
class App;
}

namespace kiln::cli {

/// The groups of the commands that other programs answer: of those that are installed, and of those
/// that only a build of the source has.
inline constexpr const char* kElsewhere = "Publishers";
inline constexpr const char* kInSource = "Builders, in a build of Kiln's source";

/// Whether the words ask for it: `kiln __man FOLDER`.
bool asks_for_man_pages(int argc, char** argv);

/// Writes a page for the program and for each of its own commands that --help shows. Throws what
/// writing does.
void write_man_pages(const CLI::App& root, const std::filesystem::path& folder);

}  // namespace kiln::cli
