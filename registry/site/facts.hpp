// SPDX-License-Identifier: Apache-2.0
//
// Facts: all that the pages of a registry say, gathered out of its folder. After publish,
// attest, describe and sign; before pages, which makes HTML of it. Reads each index, each
// manifest and config, and the smallest layer of each version, which has its schema. Reads only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "documents/advisory.hpp"
#include "documents/ops.hpp"
#include "documents/variant.hpp"
#include "registry/folder/submission.hpp"

namespace kiln::registry {

struct VariantFacts {
  Variant variant;
  std::uint64_t download = 0;  ///< bytes of its layer; 0: a variant that needs a newer Kiln
  std::uint64_t unpacked = 0;
  std::string compilers;  ///< "nvrtc 13.0.88, zig 0.15.2"
};

struct StatementFacts {
  std::string word;      ///< attest::kKinds, or a URI
  std::string says;      ///< may be empty
  std::string artifact;  ///< digest of the referrer
};

/// A test record of the statements: of each kind of result the worst relative L2 error against
/// fp64, and the variant that has it.
struct ErrorFacts {
  struct Worst {
    double error = 0;
    std::string variant;
  };
  std::string measured;  ///< "NVIDIA H200, 2026-11-24"
  std::map<std::string, Worst> worst;
};

/// What the signed metadata says of a version.
enum class SignedState {
  kNobody,   ///< the registry is unsigned
  kSigned,   ///< it is this index
  kAnother,  ///< it is another index, which clients get
  kNone,     ///< nothing: clients refuse it
};

struct VersionFacts {
  int version = 0;
  Descriptor index;
  std::string summary;
  std::string license;
  std::string min_loader;
  std::vector<OpText> ops;
  std::vector<VariantFacts> variants;  ///< in the index's order, best first
  std::vector<StatementFacts> statements;
  std::vector<ErrorFacts> errors;
  SignedState vouched = SignedState::kNobody;
  std::string gets;                   ///< of kAnother: the digest of what clients get
  std::vector<std::string> keys;      ///< ids of those that may sign for it; empty: unsigned
  std::uint64_t threshold = 0;        ///< how many of them must
  std::string attested;               ///< when, as its SBOM says: "2026-11-24T…"; may be empty
  std::string yanked;                 ///< why its publisher took it back; empty: it was not
  std::vector<Advisory> advisories;   ///< signed ones that speak of some variant of it
  std::string card;                   ///< Markdown; may be empty
  std::vector<std::string> changes;   ///< since the version before
  std::vector<std::string> problems;  ///< what could not be read, and why

  /// Whether a client installs it that asks for it now.
  bool installs() const { return yanked.empty() && vouched != SignedState::kNone; }
};

struct PackageFacts {
  std::string name;
  std::vector<VersionFacts> versions;  ///< ascending, at least one

  /// The newest that a client installs; the newest where it installs none.
  const VersionFacts& current() const;
};

struct SiteFacts {
  std::string title;
  std::string url;           ///< where kernels are installed from; empty: not known
  std::string signed_until;  ///< "2027-01-31T00:00:00Z"; empty: unsigned
  std::vector<PackageFacts> packages;
  std::vector<std::string> problems;  ///< packages and versions that could not be read, and why
};

/// Throws kUsage and kNotFound where there is no registry, and kTrust for metadata that no client
/// accepts. A document of a version that cannot be read is a problem of that version; a version
/// whose index cannot be read is one of the site.
SiteFacts gather_site(const std::filesystem::path& registry, const Progress& progress);

/// What a newer version has that the older one had not, and the other way round, a line each: ops,
/// targets, needs and licence. Pure.
std::vector<std::string> changes_between(const VersionFacts& before, const VersionFacts& after);

}  // namespace kiln::registry
