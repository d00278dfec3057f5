// SPDX-License-Identifier: Apache-2.0
//
// Settings: what a user or an administrator decides once for a machine, read from one JSON file.
// Before fetch. parse_settings is pure; load_settings reads the file each time it is asked, so that
// nothing is remembered between calls.
//
//   $KILN_CONFIG, else $XDG_CONFIG_HOME/kiln/config.json, else ~/.config/kiln/config.json
//
//   {
//     "schema": "kiln.settings/1",
//     "mirrors": {"https://ghcr.io/acme": ["https://mirror.lan/acme", "/srv/kiln"]},
//     "insecure_http": ["mirror.lan:5000"],
//     "deny": ["sha256:…", "cu12.9-sm_90a-x86_64"],
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
#include <string>
#include <string_view>
#include <vector>

namespace kiln {

/// How long and how often a registry is asked.
struct Limits {
  int tries = 5;                           ///< of one document or blob without a new byte
  std::chrono::seconds connect{10};        ///< until a connection stands
  std::chrono::seconds stall{30};          ///< below 100 B/s for so long: the try has failed
  std::chrono::seconds deadline{600};      ///< all tries and waits of one document together; a
                                           ///< blob gets a second more for each 64 KiB
  std::chrono::milliseconds backoff{500};  ///< most before the second try; doubles with each
  bool operator==(const Limits&) const = default;
};

struct Settings {
  /// Registry (or the start of its path) -> where to ask first, in this order: URLs or folders.
  std::map<std::string, std::vector<std::string>> mirrors;
  std::vector<std::string> insecure_http;  ///< host[:port] that may be asked without TLS
  std::vector<std::string> deny;           ///< manifest digests and variant ids not to be used
  Limits limits;
  bool operator==(const Settings&) const = default;
};

/// Throws kUsage, naming the file, the member and what is wrong with it.
Settings parse_settings(std::string_view text, const std::string& path);

/// Where the file is, or would be; empty if the environment names no place.
std::filesystem::path settings_path();

/// The defaults if there is no file. kUsage if there is one that cannot be read or parsed, or if
/// $KILN_CONFIG names one that is not there.
Settings load_settings();

/// The mirrors of a registry (canonical), each with what the registry's path has beyond the entry's
/// that names it; of several such entries the longest. Canonical; throws kUsage for one that is no
/// registry.
std::vector<std::string> mirrors_of(const std::string& registry, const Settings& settings);

}  // namespace kiln
