// SPDX-License-Identifier: Apache-2.0
//
// Transfer: one request over libcurl, redirects followed by hand. Knows HTTP and nothing of OCI.
// One Transfer is used by one thread at a time and keeps its connection between calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/limits.hpp"
#include "base/posix.hpp"
#include "kiln/error.hpp"

namespace kiln {

enum class HttpMethod { kGet, kHead, kPost, kPut };

/// What a PUT sends: read from any place in it, since a connection that breaks is begun anew.
struct HttpBody {
  std::uint64_t size = 0;
  /// Fills a part of `room` with the bytes from `at` on: how many. Throws to stop the request.
  std::function<std::size_t(std::uint64_t at, std::span<char> room)> read;
};

struct HttpRequest {
  std::string url;
  std::string accept = {};  ///< media types; empty: any
  /// Value of the Authorization header; empty: none. Stays with the url's scheme, host and port: a
  /// redirect to another place goes there without it.
  std::string authorization = {};
  /// Not empty: these fields are posted, and a redirect is an error, since they may hold a secret.
  std::string form = {};
  /// More than 0: asks for the bytes from here on, of `total`.
  std::uint64_t from = 0;
  std::uint64_t total = 0;
  /// Called before the first byte of a whole body (200) that came though `from` was asked for.
  std::function<void()> begin_anew = {};
  /// kPost is without a body but for `form`, kPut is with `body`. Their redirects are errors.
  HttpMethod method = HttpMethod::kGet;
  HttpBody body = {};
  std::string media_type = {};  ///< of the body
};

struct HttpAnswer {
  int status = 0;
  std::string url;  ///< that answered, after redirects; without query
  /// By name in lower case; the values of a name that came more than once are joined by ", ".
  std::map<std::string, std::string> headers;
  bool taken = false;   ///< the body went to the sink
  std::string refusal;  ///< the beginning of the body of a status from 400 on: why, perhaps

  std::string header(const std::string& name) const;  ///< empty if there is none
  bool has_length() const;  ///< the end of the body could be told from a cut
};

class Transfer {
 public:
  /// `insecure_http`: hosts that a redirect may lead to without TLS.
  explicit Transfer(Limits limits = {}, std::stop_token stop = {},
                    std::vector<std::string> insecure_http = {});
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Streams the body of a 200 answer into the sink, and that of a 206 which begins at
  /// `request.from` and ends with the last byte; the body of another status is dropped and the
  /// status is the caller's to judge. What the sink or the body throws passes through. Throws
  /// TryAgain for no connection, a stall, a body that stops short; kNetwork for a certificate that
  /// does not hold, a proxy that refuses, headers of more than 256 KiB, more than 5 redirects, a
  /// redirect to where Kiln does not go (from https to http, another scheme, an http host that is
  /// not allowed), the end of the time; kIntegrity for a body in a Content-Encoding, which nobody
  /// asked for; kCancelled within milliseconds of a stop.
  HttpAnswer ask(const HttpRequest& request, const Sink& sink);

  /// From now on no request runs longer than to this moment.
  void finish_by(std::chrono::steady_clock::time_point deadline) { deadline_ = deadline; }

  int requests() const { return requests_; }  ///< redirects included

 private:
  struct Handle;
  HttpAnswer ask_once(const HttpRequest& request, const Sink& sink);
  int perform();  ///< a CURLcode, or -1: stopped, or out of time
  std::unique_ptr<Handle> handle_;
  Limits limits_;
  std::stop_token stop_;
  std::vector<std::string> insecure_http_;
  std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::time_point::max();
  int requests_ = 0;
};

}  // namespace kiln
