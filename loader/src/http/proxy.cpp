// SPDX-License-Identifier: Apache-2.0
#include "http/proxy.hpp"

#include <initializer_list>

#include "settings/environment.hpp"

namespace kiln {
namespace {

/// The first that is set and not empty, as libcurl takes them.
std::string first_of(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (const std::string_view value = environment().text(name); !value.empty()) {
      return std::string(value);
    }
  }
  return {};
}

}  // namespace

std::string proxy_of(std::string_view scheme) {
  if (scheme == "http") return first_of({"http_proxy", "all_proxy", "ALL_PROXY"});
  return first_of({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"});
}

std::string hosts_without_proxy() {
  return first_of({"no_proxy", "NO_PROXY"});
}

}  // namespace kiln
