// SPDX-License-Identifier: Apache-2.0
//
// Environment: the variables of this process, read once. The first call into Kiln copies them all;
// later changes by setenv are not seen, and a setenv during a call races with neither Kiln
// nor libcurl, once that is set up: it gets its proxies by option. Below settings, http and probe;
// nothing else in the loader reads a variable. Safe from several threads.
//
// In a secure execution (getauxval(AT_SECURE): setuid, setgid, file capabilities) the copy is
// empty: the user who starts such a program has fewer rights than it, and must not choose by a
// variable what it loads, where it writes, whom it asks or which login it uses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kiln {

class Environment {
 public:
  /// A copy of environ as it is now; an empty one for a secure execution.
  static Environment read(bool secure);

  /// The value, also where it is empty; null where the variable is not set.
  const char* get(std::string_view name) const;
  /// The value; empty where the variable is not set.
  std::string_view text(std::string_view name) const;

  /// For posix_spawn: "NAME=value" each, with a null at the end.
  std::vector<char*> block() const;

  /// Every variable that the answer to a request can depend on: a part of the memo's key.
  const std::string& deciding() const { return deciding_; }

 private:
  std::vector<std::string> variables_;  // "NAME=value", sorted
  std::string deciding_;
};

/// Whether this process has more rights than who started it.
bool is_secure_execution();

/// The copy that the first call made.
const Environment& environment();

/// Makes a new copy. For tests, which change variables between calls: no other thread may be in
/// Kiln, and what the old copy gave is gone.
void read_environment_again();

}  // namespace kiln
