// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdlib>

// As the program starts, before Kiln copies the environment and before there are threads. What
// whoever runs the tests has set for an own use of Kiln, as a shell that read build/env, decides
// nothing here; nor does the proxy of a network.
[[maybe_unused]] static const int kIsAlone = [] {
  for (const char* name :
       {"KILN_REGISTRY", "KILN_CACHE", "KILN_LOCK", "KILN_OFFLINE", "KILN_SAFE_FOLDERS",
        "KILN_LOAD_MODE", "KILN_INSECURE_HTTP", "KILN_OVERRIDE_CUDA", "KILN_OVERRIDE_DRIVER",
        "KILN_OVERRIDE_SM", "http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
        "no_proxy", "NO_PROXY"}) {
    ::unsetenv(name);
  }
  return ::setenv("KILN_UNSIGNED", KILN_TEST_UNSIGNED, 1);
}();
