// SPDX-License-Identifier: Apache-2.0
//
// Asks a server that does not listen for a kernel. Exit status 0 if that is what the error says,
// which takes libcurl and OpenSSL.
#include <cstdio>
#include <cstdlib>
#include <kiln/kiln.hpp>

int main() {
  setenv("KILN_UNSIGNED", "https://127.0.0.1", 1);
  try {
    kiln::get_kernel("geglu-mlp", {.version = 1, .registry = "https://127.0.0.1:1/kernels"});
  } catch (const kiln::Error& error) {
    std::puts(error.what());
    return error.code() == kiln::ErrorCode::kNetwork ? 0 : 1;
  }
  return 1;
}
