// SPDX-License-Identifier: Apache-2.0
//
// Attest: signs statements about a version and hangs them on its index, for Kiln and for others'
// tools (loader: attest/statement.hpp has the format). After publish, before push and export.
//
// Beside sign, and not a part of it: sign says, with the registry's keys and again every few days,
// which index a version is. A statement is about one index for ever; whoever built, tested or
// reviewed it signs with a key of their own, and another machine's users may ask for that key. An
// index that gains variants is another index, and is attested anew.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attest/attestations.hpp"
#include "registry/attest/predicates.hpp"
#include "registry/attest/sbom.hpp"
#include "registry/folder/submission.hpp"
#include "registry/server/push.hpp"
#include "registry/trust/keys.hpp"

namespace kiln::registry {

struct AttestRequest {
  std::filesystem::path registry;
  Wanted wanted;                               ///< version 0: every version of the package
  std::vector<PrivateKey> keys;                ///< each signs each statement; Ed25519 or P-256
  std::vector<std::string> kinds;              ///< words of attest::kKinds
  std::optional<Origin> origin;                ///< for "provenance"
  std::vector<std::filesystem::path> records;  ///< for "tests"
  SbomFacts sbom;                              ///< for "sbom"
  /// What is said of an index elsewhere already, as a server has it. What these keys signed there
  /// joins the folder, and is not signed again: P-256 gives other bytes each time.
  std::function<std::vector<attest::Attestation>(const std::string& name, const Descriptor& index)>
      onto = {};
};

struct AttestedVersion {
  std::string name;
  int version = 0;
  Descriptor index;
  std::vector<std::string> added;      ///< "provenance by 6f01…"
  std::vector<std::string> unchanged;  ///< the same key has said the same before, here or there
};

/// Throws kTrust for an RSA key (others' tools pad otherwise), kNotFound for a version that is not
/// there and for tests of which no record speaks, and what the predicates throw. Each version's
/// statements are committed together.
std::vector<AttestedVersion> attest(const AttestRequest& request, const Progress& progress);

}  // namespace kiln::registry
