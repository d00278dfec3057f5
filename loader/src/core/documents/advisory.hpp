// SPDX-License-Identifier: Apache-2.0
//
// Advisory: what a publisher says of binaries that are out: whose use it warns of or refuses, on
// which machines, and why. It stands in signed metadata beside the versions (trust/metadata.hpp),
// and so reaches users as a yank does: at their next refresh. All conditions must hold for it to
// speak of a variant on a machine; one that is left out holds. Pure.
//
//   "kiln.advisories/KA-7": {"length": …, "hashes": …, "custom": {"advisory": {
//     "schema": "kiln.advisory/1", "id": "KA-7", "action": "refuse", "published": "2026-11-26T…Z",
//     "text": "wrong sums for odd D", "link": "https://…",
//     "package": "geglu-*", "versions": {"from": 1, "to": 3}, "variants": ["sha256:…",
//     "cpu-x86-64"], "gpus": ["9.0"], "drivers": {"from": "570.86.15", "to": "570.124"},
//     "lifted": "2026-12-01T…Z"}}}
//
// `drivers` holds where a machine cannot tell its driver's version: to pass over the advisory could
// let a binary run that its publisher refuses. text_for says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "documents/json_fwd.hpp"
#include "documents/variant.hpp"
#include "kiln/host.hpp"

namespace kiln {

/// Before the id, in the names of signed metadata. No package is called so: it has a dot.
inline constexpr std::string_view kAdvisoryPrefix = "kiln.advisories/";

/// Of one document of signed metadata.
inline constexpr std::size_t kMaxAdvisories = 1000;
inline constexpr std::size_t kMaxAdvisedVariants = 4096;
inline constexpr std::size_t kMaxAdvisedGpus = 64;

struct Advisory {
  std::string id;              ///< letters, digits, '.', '_' and '-', at most 64
  std::string text;            ///< a line for people
  std::string link;            ///< https://…, or empty
  bool refuses = false;        ///< else it warns
  std::int64_t published = 0;  ///< seconds since 1970

  std::string package;   ///< a name, or the beginning of names with a '*'; empty: every one
  int from_version = 0;  ///< 0: open
  int to_version = 0;
  std::vector<std::string> variants;  ///< ids, or digests of manifests; empty: all
  /// Of the machine, for GPU variants alone.
  std::vector<Version> gpus;  ///< compute capabilities; empty: all
  /// The driver's own versions, "570.124"; an end is all that begins with it. Empty: open.
  std::string from_driver, to_driver;

  std::optional<std::int64_t> lifted;  ///< since when it speaks of nothing
  bool is_unread = false;              ///< of a newer Kiln: what it speaks of is not known

  bool operator==(const Advisory&) const = default;
};

bool is_advisory_id(std::string_view text);

/// Throws kIntegrity for anything but an advisory of this id within the bounds above. An advisory
/// of a newer schema is unread.
Advisory parse_advisory(const JsonView& view, std::string_view id);
Json to_json(const Advisory& advisory);

/// Whether it is in force and may speak of some variant of a version.
bool speaks_of(const Advisory& advisory, std::string_view package, int version);
/// Whether it is in force and names this variant, on some machine.
bool names_variant(const Advisory& advisory, const std::string& id, const Digest& manifest);
/// Whether its machines are among these. `gpus`: those that the variant is to run on, none for the
/// CPU. A driver's version that `host` does not know is within any range.
bool speaks_of_machine(const Advisory& advisory, const std::vector<const Gpu*>& gpus,
                       const Host& host);

/// "advisory KA-7: wrong sums for odd D (https://…)".
std::string text_of(const Advisory& advisory);
/// Of one that speaks of this machine only because its driver's version is not known: that, and
/// where to say it; because its driver does not say which GPUs there are: why. Else empty.
std::string doubt_of(const Advisory& advisory, const Host& host);
/// Both, of one that speaks of this machine.
std::string text_for(const Advisory& advisory, const Host& host);
/// "geglu-*, versions 1 to 3, 2 variants, on GPUs 9.0, on drivers 570.86.15 to 570.124".
std::string scope_of(const Advisory& advisory);

}  // namespace kiln
