// SPDX-License-Identifier: Apache-2.0
//
// A program with more rights than its caller: no variable of the caller decides.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "output_of.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "secure_paths.hpp"
#include "settings/environment.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("environment: a secure execution has none") {
  const Environment variable("KILN_REGISTRY", "/x");
  const auto plain = kiln::Environment::read(false);
  const auto secure = kiln::Environment::read(true);
  CHECK(plain.text("KILN_REGISTRY") == "/x");
  CHECK(secure.get("KILN_REGISTRY") == nullptr);
  CHECK(secure.deciding().empty());
  CHECK(secure.block().size() == 1);
}

TEST_CASE("secure execution: a setuid program believes none of its caller's variables") {
  struct statvfs disk {};
  const Scratch scratch;
  REQUIRE(::statvfs(scratch.path().c_str(), &disk) == 0);
  if (::geteuid() != 0 || (disk.f_flag & ST_NOSUID) != 0) {
    MESSAGE("skipped: it takes root, and a temporary folder that honours setuid");
    return;
  }
  REQUIRE(::chmod(scratch.path().c_str(), 0755) == 0);
  const fs::path program = scratch / "program";
  fs::copy_file(paths::kSecureFacts, program);
  const fs::path keys = scratch / "written";
  fs::create_directory(keys);
  REQUIRE(::chmod(keys.c_str(), 0755) == 0);
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const std::string variables =
      "env -i PATH=/usr/bin:/bin HOME=/evil XDG_CACHE_HOME=/evil XDG_CONFIG_HOME=/evil "
      "XDG_RUNTIME_DIR=/evil DOCKER_CONFIG=/evil REGISTRY_AUTH_FILE=/evil https_proxy=http://evil "
      "no_proxy=evil KILN_REGISTRY=/evil KILN_CACHE=/evil KILN_LOCK=/evil/kiln.lock KILN_OFFLINE=1 "
      "KILN_UNSIGNED=/ KILN_OVERRIDE_SM= KILN_SAFE_FOLDERS=/safe SSLKEYLOGFILE=" +
      (keys / "keys").string() + " ";
  const auto run = [&](const std::string& registry) {
    return output_of("setpriv --reuid 65534 --regid 65534 --clear-groups " + variables +
                     program.string() + " " + registry + " " + (scratch / "cache").string());
  };
  // As another user's plain program it believes them.
  REQUIRE(::chmod(program.c_str(), 0755) == 0);
  CHECK_CONTAINS(run("/evil"),
                 "secure:0 registry:/evil cache:/evil lock:/evil/kiln.lock offline:1 "
                 "unsigned:1 overridden:1 proxy:http://evil no_proxy:evil login:2 "
                 "vouched:1 block:17");
  REQUIRE(::chmod(program.c_str(), 04755) == 0);
  const std::string nothing =
      "secure:1 registry: cache: lock: offline:0 unsigned:0 overridden:0 proxy: no_proxy: login:0 "
      "vouched:0 block:0\n";
  const std::string folder = run(published.root().string());
  CHECK_MESSAGE(folder.starts_with(nothing + "trust trust " + published.root().string()), folder);
  CHECK_FALSE(fs::exists(scratch / "cache"));
  CHECK_FALSE(fs::exists(keys / "keys"));
}

}  // namespace
}  // namespace kiln::test
