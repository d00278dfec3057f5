// SPDX-License-Identifier: Apache-2.0
//
// Sbom: an SPDX 2.3 document of a version: its variants and dev layers, their files, the parts that
// compilers put into them, and the pinned tools that made them. Each package has what NTIA's
// minimum elements ask: supplier, name, version, an identifier (purl) and its relations. Under
// attest, next to predicates. Reads each layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "documents/json_fwd.hpp"
#include "registry/attest/predicates.hpp"

namespace kiln::registry {

struct SbomFacts {
  std::int64_t created = 0;  ///< in seconds since 1970
  std::string supplier;      ///< who supplies the package: "Acme"; empty: it is not said
  std::vector<Pin> pins;     ///< of its compilers; none: their runtimes alone are named
};

/// Throws kIntegrity for a layer that is not what its documents say. The same version and facts
/// give the same text; but for its time, its namespace is of its contents.
Json sbom(const WholeVersion& version, const SbomFacts& facts);

}  // namespace kiln::registry
