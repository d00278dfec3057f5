// SPDX-License-Identifier: Apache-2.0
//
// Credentials: the login that this user has for a registry, as docker, podman and their helper
// programs keep it. Read only; between auth, which needs one, and the files. Nothing here puts a
// secret into an argument, an environment, an error or a note. Several threads may ask at once.
#pragma once

#include <chrono>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace kiln {

struct Credentials {
  std::string username;
  std::string secret;
  bool identity_token = false;  ///< the secret is a refresh token, to be posted to the token server
  std::string origin;           ///< "/root/.docker/config.json", "docker-credential-pass"
};

/// What was found, and for a message what was looked at: "/root/.docker/config.json has none".
struct Login {
  std::optional<Credentials> credentials;
  std::vector<std::string> notes;
};

/// The login for `registry` ("ghcr.io", "localhost:5000") that stands first in
///   $DOCKER_CONFIG/config.json, or ~/.docker/config.json: the host's own entry,
///   $REGISTRY_AUTH_FILE, or $XDG_RUNTIME_DIR/containers/auth.json: the entry with the longest path
///     that begins `registry`/`repository`,
/// and within a file in its credHelpers, its credsStore, its auths. A file or a helper that is
/// broken becomes a note: a public registry is read without it. Throws kCancelled.
Login find_login(const std::string& registry, const std::string& repository,
                 const std::stop_token& stop = {});

/// One run of docker-credential-<name>, a program that keeps logins in a keyring.
struct HelperAnswer {
  std::optional<std::string> output;  ///< of a run that ended well
  std::string failure;                ///< why there is none: "is not on PATH", "took over 30 s"
};

/// Runs `docker-credential-<name> get` with `server` on its standard input, without a shell; its
/// standard error is dropped. At most 64 KiB of output and `time` are waited for. Throws
/// kCancelled.
HelperAnswer ask_helper(const std::string& name, const std::string& server,
                        std::chrono::milliseconds time, const std::stop_token& stop);

}  // namespace kiln
