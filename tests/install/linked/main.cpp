// SPDX-License-Identifier: Apache-2.0
//
// A program over one static libkiln.a. It asks for a kernel in a folder that there is not and at a
// server that does not listen, and prints the texts. Exit status 0 if they say so, which takes
// libcurl and OpenSSL.
#include <cstdio>
#include <cstring>
#include <kiln/kiln.hpp>
#include <kiln/layers/geglu_mlp.hpp>
#include <string>

// A function of the name of one of OpenSSL's, which libkiln.a has inside: each keeps its own.
extern "C" int EVP_DigestVerifyInit();
extern "C" int EVP_DigestVerifyInit() {
  return 42;
}

namespace {

/// Whether the request fails with this code and a text that has the part.
bool fails(const std::string& registry, kiln::ErrorCode code, const char* part) {
  try {
    kiln::get_kernel("geglu-mlp", {.version = 1, .registry = registry});
  } catch (const kiln::Error& error) {
    std::puts(error.what());
    return error.code() == code && std::strstr(error.what(), part) != nullptr;
  }
  return false;
}

}  // namespace

int main() {
  const bool folder = fails("/nonexistent/registry", kiln::ErrorCode::kNotFound, "no such folder");
  const bool server = fails("https://127.0.0.1:1/kernels", kiln::ErrorCode::kNetwork, "127.0.0.1");
  return folder && server && EVP_DigestVerifyInit() == 42 ? 0 : 1;
}
