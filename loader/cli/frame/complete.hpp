// SPDX-License-Identifier: Apache-2.0
//
// Complete: what a shell may offer for the word at its cursor, read off the options and commands
// that CLI11 has: a new one is completed without a line here. The scripts of `kiln completions` ask
// `kiln __complete WORD...`, of which the last word is the one at the cursor.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kiln::cli {

/// What a program knows besides its own words.
struct Offers {
  std::function<std::vector<std::string>()>
      packages;  ///< of PACKAGE; none: there are no such words
  /// Of VARIANT, for the words that were typed before it.
  std::function<std::vector<std::string>(const std::vector<std::string>&)> variants;
};

/// Prints a line for each word, with a tab and its summary if it has one; ":folders" or ":files"
/// where the shell knows what there is. An option's type_name says what its value may be. The shell
/// drops what does not begin with the word at the cursor. Returns the exit status.
int complete(const CLI::App& root, int argc, char** argv, const Offers& offers = {});

}  // namespace kiln::cli
