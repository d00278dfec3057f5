// SPDX-License-Identifier: Apache-2.0
//
// kiln login: Kiln keeps no logins, it uses those of docker, podman and skopeo. Says which one it
// would use for a registry, never the secret, and the exact line that makes one.
#include <unistd.h>

#include <memory>
#include <string>

#include "base/join.hpp"
#include "documents/json.hpp"
#include "http/connection.hpp"
#include "http/credentials.hpp"
#include "http/url.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "settings/environment.hpp"
#include "settings/settings.hpp"
#include "store/registry.hpp"

namespace kiln::cli {
namespace {

bool is_on_path(const std::string& program) {
  for (const std::string_view folder : split(environment().text("PATH"), ':')) {
    const std::string file = std::string(folder) + "/" + program;
    if (::access(file.c_str(), X_OK) == 0) return true;
  }
  return false;
}

/// With the program that is here. docker writes where Kiln looks; where the others keep theirs is
/// known by these variables alone, so that without them they are told.
std::string login_line(const std::string& server) {
  for (const std::string program : {"docker", "podman", "skopeo"}) {
    if (!is_on_path(program)) continue;
    const bool told = program != "docker" && environment().text("XDG_RUNTIME_DIR").empty() &&
                      environment().text("REGISTRY_AUTH_FILE").empty();
    return std::string(program)
        .append(" login ")
        .append(told ? "--authfile ~/.docker/config.json " : "")
        .append(server);
  }
  return "docker login " + server;
}

int run_login(const std::string& written, const Options& options) {
  const Settings settings = load_settings();
  const std::string registry = canonical_registry(written, settings);
  if (registry.starts_with('/')) {
    print_json("login", {{"registry", registry}, {"needed", false}});
    print("%s is a folder: it needs no login\n", registry.c_str());
    return 0;
  }
  Traffic traffic;
  const Connection connection(registry, "package", settings, {}, traffic);
  const std::string server = parse_url(connection.root()).server();
  std::string path = parse_url(registry).path;
  if (path.starts_with('/')) path.erase(0, 1);
  const Login login = find_login(server, path, options.request.stop);
  const std::string line = login_line(server);
  Json document = {{"registry", registry}, {"needed", nullptr}, {"server", server},
                   {"origin", nullptr},    {"user", nullptr},   {"notes", login.notes},
                   {"command", line}};
  print("registry  %s\n", registry.c_str());
  if (login.credentials) {
    const bool token = login.credentials->identity_token;
    document["origin"] = login.credentials->origin;
    if (!token) document["user"] = login.credentials->username;
    print("login     of %s, from %s\n",
          token ? "an identity token" : login.credentials->username.c_str(),
          login.credentials->origin.c_str());
  } else {
    print("login     none: %s\n",
          login.notes.empty() ? "no file of logins is set" : join(login.notes).c_str());
  }
  print("log in    %s\n", line.c_str());
  print_json("login", std::move(document));
  return 0;
}

}  // namespace

void login(KernelCommand& command) {
  const auto registry = std::make_shared<std::string>();
  command.option("registry", *registry, "FOLDER|URL", "Folder or URL; default $KILN_REGISTRY");
  command.example("https://ghcr.io/acme/kernels",
                  "which login Kiln has for it, and how to get one");
  command.runs([registry](const Options& options) { return run_login(*registry, options); });
}

}  // namespace kiln::cli
