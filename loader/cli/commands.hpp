// SPDX-License-Identifier: Apache-2.0
//
// Commands: what each word of `kiln` does. They get parsed options, print their result on stdout
// (one JSON document with --json), progress on stderr, return the exit code, and throw kiln::Error.
#pragma once

#include <string>
#include <vector>

#include "kiln/kernel.hpp"

namespace kiln::cli {

/// "geglu-mlp@1". Version 0: none was given.
struct Spec {
  std::string name;
  int version = 0;
};
/// Throws kUsage for text that is not NAME or NAME@VERSION.
Spec parse_spec(const std::string& text);

struct Options {
  std::vector<Spec> specs;
  Request request;  ///< everything but the version, which comes from each spec
  bool json = false;
  bool quiet = false;

  Request request_for(const Spec& spec) const;
};

int install(const Options& options);  ///< fetches, verifies and unpacks; loads nothing
int resolve(const Options& options);  ///< which variant would be taken, and why; kNoVariant if none
int list(const Options& options);     ///< what is in the cache
int path(const Options& options);    ///< the file get_kernel would load; kNotFound if not installed
int verify(const Options& options);  ///< hashes what is installed; kIntegrity if anything differs
int info(const Options& options);    ///< versions and variants of a package; its ops once installed
int doctor(const Options& options);  ///< this machine, what it would get, and what to mend

}  // namespace kiln::cli
