// SPDX-License-Identifier: Apache-2.0
//
// Proxy: which one a request goes through, by the variables that libcurl would read itself, from
// Kiln's copy of them: a setenv during a download is then no race, and in a secure execution no
// variable counts. Before transfer. Safe from several threads.
#pragma once

#include <string>
#include <string_view>

namespace kiln {

/// $http_proxy (in lower case alone: a CGI program's HTTP_PROXY is a header of its client),
/// $https_proxy, $HTTPS_PROXY, else $all_proxy, $ALL_PROXY. Empty: none.
std::string proxy_of(std::string_view scheme);

/// $no_proxy, $NO_PROXY: the hosts that are asked without one, as libcurl reads it.
std::string hosts_without_proxy();

}  // namespace kiln
