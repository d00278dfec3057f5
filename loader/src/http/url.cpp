// SPDX-License-Identifier: Apache-2.0
#include "http/url.hpp"

#include <arpa/inet.h>
#include <curl/curl.h>

#include <algorithm>
#include <memory>

#include "base/ascii.hpp"
#include "base/quote.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

using Parsed = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

/// Null for what is not a URL.
Parsed parse(const std::string& text) {
  Parsed url(curl_url(), &curl_url_cleanup);
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) url.reset();
  return url;
}

[[noreturn]] void fail_url(const std::string& url, const std::string& found) {
  throw Error(ErrorCode::kUsage,
              "open registry " + url + ": " + found + ". Write https://host[:port][/prefix]");
}

std::string part_of(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK || text == nullptr) return {};
  std::string value = text;
  curl_free(text);
  return value;
}

bool is_listed(const Url& url, const std::vector<std::string>& insecure_http) {
  return std::any_of(insecure_http.begin(), insecure_http.end(), [&](const std::string& entry) {
    return lower_case(entry) == url.host || lower_case(entry) == url.server();
  });
}

std::string whole_place(const Url& url) {
  return url.scheme + "://" + url.server() + url.path;
}

}  // namespace

Url parse_url(const std::string& text) {
  const Parsed url = parse(text);
  if (!url) fail_url("(one that does not parse)", "it is not a URL");
  Url parts;
  parts.scheme = lower_case(part_of(url.get(), CURLUPART_SCHEME));
  parts.host = lower_case(part_of(url.get(), CURLUPART_HOST));
  parts.port = part_of(url.get(), CURLUPART_PORT, CURLU_NO_DEFAULT_PORT);
  parts.path = part_of(url.get(), CURLUPART_PATH);
  parts.has_credentials = !part_of(url.get(), CURLUPART_USER).empty() ||
                          !part_of(url.get(), CURLUPART_PASSWORD).empty();
  parts.has_query = !part_of(url.get(), CURLUPART_QUERY).empty() ||
                    !part_of(url.get(), CURLUPART_FRAGMENT).empty();
  return parts;
}

std::string resolve_reference(const std::string& base, const std::string& reference) {
  const Parsed url = parse(base);
  if (curl_url_set(url.get(), CURLUPART_URL, reference.c_str(), 0) != CURLUE_OK) return {};
  return part_of(url.get(), CURLUPART_URL);
}

std::string follow_reference(const std::string& base, const std::string& reference,
                             const std::vector<std::string>& insecure_http,
                             const std::string& message) {
  const auto refuse = [&](const std::string& found) {
    throw Error(ErrorCode::kNetwork,
                message + found + ". Check the network and the registry's name, then try again");
  };
  std::string target = resolve_reference(base, reference);
  if (target.empty()) refuse(quote(reference) + ", which is not a URL");
  const Url to = parse_url(target);
  if (!to.may_be_asked(insecure_http) ||
      (parse_url(base).scheme == "https" && to.scheme != "https")) {
    refuse(to.place() + ", expected https (http only within this machine)");
  }
  if (to.is_loopback() && !parse_url(base).is_loopback()) {
    refuse(to.place() + ", which is this machine, expected a server that others reach too");
  }
  return target;
}

std::string with_field(const std::string& url, const std::string& field) {
  const Parsed parsed = parse(url);
  curl_url_set(parsed.get(), CURLUPART_FRAGMENT, nullptr, 0);
  curl_url_set(parsed.get(), CURLUPART_QUERY, field.c_str(), CURLU_APPENDQUERY);
  return part_of(parsed.get(), CURLUPART_URL);
}

std::string Url::server() const {
  return host + (port.empty() ? "" : ":" + port);
}

std::string Url::place() const {
  constexpr std::size_t kShown = 512;
  const std::string text = whole_place(*this);
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

bool Url::is_loopback() const {
  if (host == "localhost" || host == "[::1]") return true;
  in_addr address{};  // the whole name must be an address: 127.example.org is not one
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 && host.starts_with("127.");
}

bool Url::same_server(const Url& other) const {
  return scheme == other.scheme && host == other.host && port == other.port;
}

bool Url::may_be_asked(const std::vector<std::string>& insecure_http) const {
  return scheme == "https" ||
         (scheme == "http" && (is_loopback() || is_listed(*this, insecure_http)));
}

std::string canonical_url(const std::string& text, const std::vector<std::string>& insecure_http) {
  Url url = parse_url(text);
  while (url.path.ends_with('/')) url.path.pop_back();
  if (url.host.empty()) fail_url(url.place(), "it names no host");
  if (url.has_credentials)
    fail_url(url.place(), "it holds a user or a password, which Kiln never sends");
  if (url.has_query) fail_url(url.place(), "it has a query or a fragment");
  if (!url.may_be_asked(insecure_http)) {
    throw Error(ErrorCode::kUsage,
                "open registry " + url.place() +
                    ": plain http is only for this machine. Use https, or list " + url.host +
                    " in KILN_INSECURE_HTTP if the network up to it is trusted");
  }
  return whole_place(url);
}

}  // namespace kiln
