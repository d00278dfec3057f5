// SPDX-License-Identifier: Apache-2.0
//
// Shell word: a path or a name in a command that a text tells the user to run. Pure.
#pragma once

#include <string>
#include <string_view>

namespace kiln {

/// One word of a POSIX shell that stands for exactly this text, whatever is in it, so that the
/// command can be pasted. With backslashes: such a command stands in single quotes. Letters of all
/// languages stay as they are.
std::string shell_word(std::string_view text);

}  // namespace kiln
