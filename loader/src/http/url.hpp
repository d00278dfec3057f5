// SPDX-License-Identifier: Apache-2.0
//
// Url: which servers may be asked, and in which words. Parsing is libcurl's, so that what is
// checked here is what libcurl then connects to. Part of fetch. Pure but for $KILN_INSECURE_HTTP
// and the settings' insecure_http, which are read where a plain http host is judged.
#pragma once

#include <string>

namespace kiln {

struct Url {
  std::string scheme;  ///< lower case
  std::string host;    ///< lower case; an IPv6 address in brackets
  std::string port;    ///< empty for the scheme's own
  std::string path;    ///< from the first slash; may be empty
  bool has_credentials = false;
  bool has_query = false;

  /// Scheme, host, port and path: what a message may show. Credentials and a signed query stay out.
  std::string place() const;
  bool is_loopback() const;
  bool same_server(const Url& other) const;  ///< scheme, host and port
  /// https, or http of this machine or of a host that $KILN_INSECURE_HTTP or the settings list.
  bool may_be_asked() const;
};

/// What `reference`, as a server writes it, means on the page `base`. Empty if it is no reference.
std::string resolve_reference(const std::string& base, const std::string& reference);

/// Throws kUsage for what is no URL.
Url parse_url(const std::string& text);

}  // namespace kiln
