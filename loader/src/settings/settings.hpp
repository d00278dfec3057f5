// SPDX-License-Identifier: Apache-2.0
//
// Settings: what a user or an administrator decides for a machine: the environment and two JSON
// files, read once for each request into one value, which every later stage is given. Before
// everything else of an install. parse_settings is pure.
//
//   /etc/kiln/config.json; over it $KILN_CONFIG, else $XDG_CONFIG_HOME/kiln/config.json, else
//   ~/.config/kiln/config.json; over both the environment
//
//   {
//     "schema": "kiln.settings/1",
//     "registry": "https://ghcr.io/acme",
//     "mirrors": {"https://ghcr.io/acme": ["https://mirror.lan/acme", "/srv/kiln"]},
//     "insecure_http": ["mirror.lan:5000"],
//     "deny": ["sha256:…", "cu12.9-sm_90a-x86_64"],
//     "tested": "here",
//     "newest_after": "7 days",
//     "advisories": "obey", "accept_advisories": ["KA-7"],
//     "network": {"tries": 5, "connect_seconds": 10, "stall_seconds": 30, "deadline_seconds": 600,
//                 "backoff_ms": 500}
//   }
//
// Every member but "schema" may be left out. An unknown one is refused: a misspelt "deny" must not
// be taken for an empty one.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/limits.hpp"
#include "documents/variant.hpp"
#include "settings/trust_file.hpp"

namespace kiln {

/// What an advisory does that speaks of a variant: what its publisher says; or it warns, or
/// refuses, whatever that says.
enum class Advice { kObeyed, kWarns, kRefuses };

struct Settings {
  /// $KILN_REGISTRY, else the files' word, as it is written; empty: none.
  std::string registry;
  std::filesystem::path cache;  ///< default_cache()
  std::filesystem::path lock;   ///< $KILN_LOCK; empty: none
  bool offline = false;         ///< $KILN_OFFLINE is neither empty nor "0"

  /// Registry (or the start of its path) -> where to ask first, in this order: URLs or folders.
  std::map<std::string, std::vector<std::string>> mirrors;
  /// host[:port] that may be asked without TLS: the file's, then those of $KILN_INSECURE_HTTP.
  std::vector<std::string> insecure_http;
  std::vector<std::string>
      deny;                      ///< manifest digests and variant ids not to be used; of both files
  Tested tested = Tested::kAny;  ///< "any", "somewhere" or "here"
  /// How long ago a version must have been published to count as the newest; 0: it counts at once.
  std::chrono::seconds newest_after{0};
  Advice advisories = Advice::kObeyed;           ///< "obey", "warn" or "refuse"
  std::vector<std::string> accepted_advisories;  ///< ids that do nothing; of both files
  /// trust.json's; unsigned: those of $KILN_UNSIGNED too; and the root that is installed with the
  /// default_registry(), REGISTRY.root.json.
  Trust trust;
  Limits limits;
  bool operator==(const Settings&) const = default;
};

/// What the file says, over `settings`. Throws kUsage, naming the file, the member and what is
/// wrong with it.
Settings parse_settings(std::string_view text, const std::string& path, Settings settings = {});

/// "7 days", "1 day", "12 hours" or "0", and back. Nothing for another text.
std::optional<std::chrono::seconds> parse_age(std::string_view text);
std::string age_text(std::chrono::seconds age);

/// $KILN_CACHE, else $XDG_CACHE_HOME/kiln, else ~/.cache/kiln; empty: none of them is set.
std::filesystem::path default_cache();

/// The registry that is asked where nothing else is named: share/kiln/registry of the prefix that
/// this program or library is installed in (its bin, its lib, or a Python's site-packages/kiln), if
/// that is there; else the one that it was compiled for.
std::string default_registry();

/// Where the file is, or would be; empty if the environment names no place.
std::filesystem::path settings_path();

/// The environment, and the file if there is one. kUsage if there is one that cannot be read or
/// parsed, or if $KILN_CONFIG names one that is not there.
Settings load_settings();

}  // namespace kiln
