// SPDX-License-Identifier: Apache-2.0
//
// CoolDown: which versions count as the newest for the commands that change a lock file: those that
// were published as long ago as "newest_after" of the settings, or --newest-after, says. Around
// install/catalog. What it passes over it prints, with the time from which that version counts. A
// version that the user names is taken, and said to be young. For one command.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "documents/json.hpp"
#include "install/catalog.hpp"
#include "loader/cli/verbs/locking.hpp"

namespace kiln::cli {

class CoolDown {
 public:
  /// Both outlive it. Throws kUsage for a --newest-after that is not a time.
  CoolDown(const Project& project, const Options& options);

  std::vector<PublishedVersion> obtainable(const std::string& name, const std::string& registry);

  /// Throws kTrust where every version was taken back, and where no signature says when one was
  /// published; kNotFound where all are too young.
  int newest_version(const std::string& name, const std::string& registry);

  /// Of these, 0 where none counts. What is newer than `locked` and does not count is printed.
  int newest_of(const std::string& name, const std::vector<PublishedVersion>& versions, int locked);

  /// Prints, of a version that the user names, that it would not count yet.
  void note_named(const std::string& name, int version, const std::string& registry);

  /// Of each version that does not count: name, version, published, counts_from, taken.
  const Json& young() const { return young_; }

 private:
  void note(const std::string& name, const PublishedVersion& version, bool taken);

  const Options& options_;
  std::chrono::seconds age_;
  std::int64_t now_;
  Json young_ = Json::array();
};

}  // namespace kiln::cli
