// SPDX-License-Identifier: Apache-2.0
#include "http/certificates.hpp"

#include <unistd.h>

namespace kiln {

std::string certificates_file(const std::filesystem::path& root) {
  constexpr const char* kPlaces[] = {
      "etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch, Gentoo
      "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // RHEL and Fedora, 7 and later
      "etc/pki/tls/certs/ca-bundle.crt",                   // RHEL 6, Amazon Linux
      "etc/ssl/ca-bundle.pem",                             // openSUSE
      "etc/ssl/cert.pem",                                  // Alpine
  };
  for (const char* place : kPlaces) {
    const std::filesystem::path file = root / place;
    if (access(file.c_str(), R_OK) == 0) return file.string();
  }
  return {};
}

}  // namespace kiln
