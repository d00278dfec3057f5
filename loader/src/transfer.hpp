// SPDX-License-Identifier: Apache-2.0
//
// Transfer: one request over libcurl, redirects followed by hand. Part of fetch; knows HTTP and
// nothing of OCI. One Transfer is used by one thread at a time and keeps its connection between
// calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "fetch.hpp"

namespace kiln {

struct HttpRequest {
  std::string url;
  std::string accept = {};  ///< media types; empty: any
  /// Value of the Authorization header; empty: none. Stays with the url's scheme, host and port: a
  /// redirect to another place goes there without it.
  std::string authorization = {};
  /// Not empty: these fields are posted, and a redirect is an error, since they may hold a secret.
  std::string form = {};
};

struct HttpAnswer {
  int status = 0;
  std::string url;             ///< that answered, after redirects; without query
  std::string content_digest;  ///< Docker-Content-Digest, or empty
  std::string challenge;       ///< its WWW-Authenticate headers, joined by ", "; of a 401
};

class Transfer {
 public:
  Transfer();
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Streams the body of a 200 answer into the sink; the body of another status is dropped and the
  /// status is the caller's to judge. What the sink throws passes through. Throws kNetwork if
  /// there is no whole answer: no connection in 10 s, less than 100 B/s for 30 s, a body that stops
  /// short, more than 5 redirects, a redirect to where Kiln does not go (from https to http,
  /// another scheme, an http host that is not allowed).
  HttpAnswer get(const HttpRequest& request, const Sink& sink);

  int requests() const { return requests_; }  ///< redirects included

 private:
  struct Handle;
  HttpAnswer get_once(const HttpRequest& request, const Sink& sink, std::string& redirect);
  std::unique_ptr<Handle> handle_;
  int requests_ = 0;
};

}  // namespace kiln
