// SPDX-License-Identifier: Apache-2.0
//
// Proxy: which one a request goes through, by the variables that libcurl would read itself, from
// Kiln's copy of them: a setenv during a download is then no race, and in a secure execution no
// variable counts. Before transfer. Safe from several threads.
#pragma once

#include <string>
#include <string_view>

namespace kiln {

struct Proxy {
  std::string_view variable = {};  ///< "https_proxy": the one that counts
  std::string url = {};            ///< empty: none. May hold a password: no text has it
};

/// $http_proxy (in lower case alone: a CGI program's HTTP_PROXY is a header of its client),
/// $https_proxy, $HTTPS_PROXY, else $all_proxy, $ALL_PROXY.
Proxy proxy_of(std::string_view scheme);

/// Whether libcurl could go through it: a URL with a host, of HTTP, HTTPS or SOCKS; without a
/// scheme, of HTTP.
bool is_usable(const Proxy& proxy);

/// $no_proxy, $NO_PROXY: the hosts that are asked without one, as libcurl reads it.
std::string hosts_without_proxy();

}  // namespace kiln
