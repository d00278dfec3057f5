// SPDX-License-Identifier: Apache-2.0
//
// Where the distributions keep their certificates.
#include "http/certificates.hpp"

#include <doctest/doctest.h>

#include <filesystem>

#include "scratch.hpp"

namespace kiln::test {
namespace {

TEST_CASE("certificates: each distribution's file is found, Debian's before the others") {
  constexpr const char* kLastToFirst[] = {
      "etc/ssl/cert.pem",                                  // Alpine
      "etc/ssl/ca-bundle.pem",                             // openSUSE
      "etc/pki/tls/certs/ca-bundle.crt",                   // Amazon Linux
      "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // RHEL
      "etc/ssl/certs/ca-certificates.crt",                 // Debian
  };
  const Scratch root;
  CHECK(certificates_file(root.path()).empty());
  for (const char* place : kLastToFirst) {
    const std::filesystem::path file = root / place;
    std::filesystem::create_directories(file.parent_path());
    write_file(file, "");
    CHECK(certificates_file(root.path()) == file.string());
  }
}

TEST_CASE("certificates: a link to nothing is no file") {
  const Scratch root;
  std::filesystem::create_directories(root / "etc/ssl/certs");
  std::filesystem::create_symlink("gone", root / "etc/ssl/certs/ca-certificates.crt");
  CHECK(certificates_file(root.path()).empty());
}

}  // namespace
}  // namespace kiln::test
