// SPDX-License-Identifier: Apache-2.0
//
// Prints what Kiln knows of its environment, in one line, then what get_kernel("sample") from
// argv[1] with the cache argv[2] says. secure_test runs it setuid, with hostile variables.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "http/credentials.hpp"
#include "http/proxy.hpp"
#include "http/transfer.hpp"
#include "kiln/kiln.hpp"
#include "probe/probe.hpp"
#include "settings/environment.hpp"
#include "settings/owners.hpp"
#include "settings/settings.hpp"

int main(int, char** words) {
  try {
    const kiln::Settings settings = kiln::load_settings();
    const kiln::Host host = kiln::probe_host();
    std::printf(
        "secure:%d registry:%s cache:%s lock:%s offline:%d unsigned:%zu overridden:%zu "
        "proxy:%s no_proxy:%s login:%zu vouched:%d block:%zu\n",
        kiln::is_secure_execution() ? 1 : 0, settings.registry.c_str(), settings.cache.c_str(),
        settings.lock.c_str(), settings.offline ? 1 : 0, settings.trust.unsigned_registries.size(),
        host.overridden.size(), kiln::proxy_of("https").url.c_str(),
        kiln::hosts_without_proxy().c_str(),
        kiln::find_login("registry.lan", "sample", {}).notes.size(),
        kiln::is_vouched_for("/safe") ? 1 : 0, kiln::environment().block().size() - 1);
    const kiln::Transfer set_up({}, {}, {});  // libcurl
    kiln::get_kernel(
        "sample",
        {.version = 1, .device = kiln::Device::cpu(), .registry = words[1], .cache = words[2]});
    std::puts("loaded");
  } catch (const kiln::Error& error) {
    std::printf("%s %s\n", std::string(to_string(error.code())).c_str(), error.what());
  }
  return 0;
}
