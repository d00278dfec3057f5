// SPDX-License-Identifier: Apache-2.0
//
// Url: which servers may be asked, and in which words. Parsing is libcurl's, so that what is
// checked here is what libcurl then connects to. Part of http. Pure.
#pragma once

#include <string>
#include <vector>

namespace kiln {

struct Url {
  std::string scheme;  ///< lower case
  std::string host;    ///< lower case; an IPv6 address in brackets
  std::string port;    ///< empty for the scheme's own
  std::string path;    ///< from the first slash; may be empty
  bool has_credentials = false;
  bool has_query = false;

  /// Scheme, host, port and path, cut after 512 bytes: what a message may show, since a server
  /// chooses where it redirects to. Credentials and a signed query stay out.
  std::string place() const;
  std::string server() const;  ///< host, and the port if there is one
  bool is_loopback() const;
  bool same_server(const Url& other) const;  ///< scheme, host and port
  /// https, or http of this machine or of a host[:port] among `insecure_http`.
  bool may_be_asked(const std::vector<std::string>& insecure_http) const;
};

/// What `reference`, as a server writes it, means on the page `base`. Empty for any other text.
std::string resolve_reference(const std::string& base, const std::string& reference);

/// The same where Kiln would go on there: kNetwork if it is not a URL, may not be asked, or leads
/// from https to http or from another machine to this one. `message` begins the error: "get
/// https://…: it redirects to ".
std::string follow_reference(const std::string& base, const std::string& reference,
                             const std::vector<std::string>& insecure_http,
                             const std::string& message);

/// `url` with one more field, "digest=sha256:…", at the end of its query.
std::string with_field(const std::string& url, const std::string& field);

/// Throws kUsage for what is not a URL.
Url parse_url(const std::string& text);

/// A registry's URL in canonical spelling: scheme and host in lower case, no default port, no final
/// slash. Throws kUsage for credentials, a query, a fragment, or plain http where it is not
/// allowed.
std::string canonical_url(const std::string& text, const std::vector<std::string>& insecure_http);

}  // namespace kiln
