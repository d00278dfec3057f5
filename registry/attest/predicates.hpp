// SPDX-License-Identifier: Apache-2.0
//
// Predicates: what the statements about a version say, made of its documents and of what its
// builder knows. The SBOM is in sbom.hpp. Under attest. Pure. The same version and facts give the
// same text.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "documents/json_fwd.hpp"
#include "documents/variant.hpp"
#include "registry/folder/build_output.hpp"

namespace kiln::registry {

/// A version with all that its index names.
struct WholeVersion {
  Index index;
  Descriptor descriptor;
  std::vector<BuiltVariant> variants;
};

/// A pinned download, of ci/toolchains.lock: "[zig]", then "ziglang==0.15.2 --hash=sha256:…".
struct Pin {
  std::string component;  ///< "zig", "cuda-12.9"
  std::string name;
  std::string version;
  Digest digest;
};

/// "pkg:pypi/ziglang@0.15.2"
std::string purl_of(const Pin& pin);

/// What the builder wrote of a variant's compilers into its config: {"zig": "0.15.2", …}.
std::map<std::string, std::string> compilers_of(const Config& config);
/// The section of the lock file that has a variant's compiler.
std::string component_of(const std::string& compiler, const Config& config);

/// Throws kIntegrity for a line that is neither a section, a pin nor a comment.
std::vector<Pin> parse_pins(const std::string& text, const std::string& file);

/// How a version was built.
struct Origin {
  std::string source;      ///< URL of the repository
  std::string commit;      ///< 40 hex digits
  std::string builder;     ///< URI of the build's operator
  std::string invocation;  ///< URI of this run; empty: none
  std::vector<Pin> pins;
};

/// SLSA provenance v1. Throws kIntegrity for a variant of a compiler that no pin names.
Json provenance(const WholeVersion& version, const Origin& origin);

/// The records' results for libraries of this version; null without any. Throws what read_records
/// and tested_places do: a failed test is never signed.
Json tests(const WholeVersion& version, const std::vector<std::filesystem::path>& records);

}  // namespace kiln::registry
