// SPDX-License-Identifier: Apache-2.0
#include "http/proxy.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>

#include "settings/environment.hpp"

namespace kiln {
namespace {

/// The first that is set and not empty, as libcurl takes them.
Proxy first_of(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (const std::string_view value = environment().text(name); !value.empty()) {
      return {.variable = name, .url = std::string(value)};
    }
  }
  return {};
}

}  // namespace

Proxy proxy_of(std::string_view scheme) {
  if (scheme == "http") return first_of({"http_proxy", "all_proxy", "ALL_PROXY"});
  return first_of({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"});
}

bool is_usable(const Proxy& proxy) {
  constexpr std::array<std::string_view, 6> kSchemes = {"http",    "https",  "socks4",
                                                        "socks4a", "socks5", "socks5h"};
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parts(curl_url(), &curl_url_cleanup);
  constexpr unsigned kFlags = CURLU_NON_SUPPORT_SCHEME | CURLU_GUESS_SCHEME;
  char* scheme = nullptr;
  const bool is_url =
      curl_url_set(parts.get(), CURLUPART_URL, proxy.url.c_str(), kFlags) == CURLUE_OK &&
      curl_url_get(parts.get(), CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK;
  const std::unique_ptr<char, decltype(&curl_free)> held(scheme, &curl_free);
  return is_url && std::ranges::count(kSchemes, std::string_view(scheme)) == 1;
}

std::string hosts_without_proxy() {
  return first_of({"no_proxy", "NO_PROXY"}).url;
}

}  // namespace kiln
