// SPDX-License-Identifier: Apache-2.0
//
// Attest: signs statements about a version and hangs them on its index, for Kiln and for others'
// tools (loader: attest/statement.hpp has the format). After publish, before push and export.
//
// Signing metadata is another thing: sign says, with the registry's keys and again every few days,
// which index a version is. A statement is about one index for ever; whoever built, tested or
// reviewed it signs with a key of their own, and another machine's users may ask for that key. An
// index that gains variants is another index, and is attested anew.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attest/attestations.hpp"
#include "registry/attest/predicates.hpp"
#include "registry/attest/sbom.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/package_versions.hpp"
#include "registry/folder/submission.hpp"
#include "registry/trust/keys.hpp"

namespace kiln::registry {

struct AttestRequest {
  std::filesystem::path registry;
  PackageVersions versions;
  std::vector<PrivateKey> keys;                ///< each signs each statement; Ed25519 or P-256
  std::vector<std::string> kinds;              ///< words of attest::kKinds
  std::optional<Origin> origin;                ///< for "provenance"
  std::vector<std::filesystem::path> records;  ///< for "tests"
  SbomFacts sbom;                              ///< for "sbom"
  /// Statements about an index that a server has already. Those by these keys join the folder and
  /// are not signed again: P-256 gives other bytes each time.
  std::function<std::vector<attest::Attestation>(const std::string& name, const Descriptor& index)>
      onto = {};
};

/// A statement that hangs on an index in a folder, in its envelope.
struct Said {
  attest::Envelope envelope;
  attest::Statement statement;
};
std::vector<Said> said_about(const Layout& layout, const Descriptor& index);

struct AttestedVersion {
  std::string name;
  int version = 0;
  Descriptor index;
  std::vector<std::string> added;      ///< "provenance by 6f01…"
  std::vector<std::string> unchanged;  ///< the same key has said the same before, here or there
};

/// Throws kTrust for an RSA key (other tools pad differently), kNotFound for a version that is not
/// there and for tests without a record, and what the predicates throw: nothing of any version is
/// signed then. Each version's statements are committed together.
std::vector<AttestedVersion> attest(const AttestRequest& request, const Progress& progress);

}  // namespace kiln::registry
