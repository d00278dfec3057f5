// SPDX-License-Identifier: Apache-2.0
//
// Ninja: the text of a build.ninja, with names and commands quoted. Pure.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::build {

/// One argument as a POSIX shell reads it back.
std::string shell_quoted(std::string_view argument);

class NinjaFile {
 public:
  /// `command` may refer to $in, $out and the variables of a build. With `keeps_unchanged`, a step
  /// that leaves its output as it was ends the rebuild there.
  void rule(const std::string& name, const std::string& command, const std::string& description,
            bool keeps_unchanged = false);

  struct Build {
    std::string rule;
    std::vector<std::string> outputs;
    std::vector<std::string> inputs;
    std::vector<std::string> implicit;             ///< inputs that are not in $in
    std::map<std::string, std::string> variables;  ///< values are literal text
    std::string depfile;
  };
  void build(const Build& build);
  /// Whether a build makes this output.
  bool has(const std::string& output) const { return outputs_.contains(output); }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::set<std::string> outputs_;
};

}  // namespace kiln::build
