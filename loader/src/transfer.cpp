// SPDX-License-Identifier: Apache-2.0
#include "transfer.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "kiln/error.hpp"
#include "url.hpp"

namespace kiln {
namespace {

constexpr int kMaxRedirects = 5;
constexpr long kConnectSeconds = 10;
constexpr long kStallSeconds = 30;
constexpr long kStallBytesPerSecond = 100;
constexpr std::uint64_t kMaxDroppedBytes = 1u << 20;  // of the body of an error
constexpr std::size_t kMaxChallengeBytes = 64u << 10;

struct ListFree {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Headers = std::unique_ptr<curl_slist, ListFree>;

Headers headers_of(const HttpRequest& request) {
  // Blobs are hashed as they are stored: no server may compress them on the way.
  Headers list(curl_slist_append(nullptr, "Accept-Encoding: identity"));
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty() && list) curl_slist_append(list.get(), (name + ": " + value).c_str());
  };
  add("Accept", request.accept);
  add("Authorization", request.authorization);
  return list;
}

/// The value of a header line of this name, which is in lower case.
std::optional<std::string_view> value_of(std::string_view line, std::string_view name) {
  const bool same = line.size() > name.size() && line[name.size()] == ':' &&
                    std::equal(name.begin(), name.end(), line.begin(),
                               [](char a, unsigned char b) { return a == std::tolower(b); });
  if (!same) return std::nullopt;
  line.remove_prefix(name.size() + 1);
  const std::size_t first = line.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return line.substr(first, line.find_last_not_of(" \t\r\n") - first + 1);
}

/// One answer as it arrives.
struct Receiver {
  CURL* handle;
  const Sink* sink;
  std::string content_digest = {};
  std::string challenge = {};
  std::uint64_t dropped = 0;
  std::exception_ptr failure = nullptr;  // an exception must not cross libcurl's C frames

  static std::size_t body(char* data, std::size_t, std::size_t size, void* self) {
    Receiver& receiver = *static_cast<Receiver*>(self);
    long status = 0;
    curl_easy_getinfo(receiver.handle, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) {
      receiver.dropped += size;
      return receiver.dropped > kMaxDroppedBytes ? 0 : size;
    }
    try {
      (*receiver.sink)({data, size});
      return size;
    } catch (...) {
      receiver.failure = std::current_exception();
      return 0;  // libcurl stops the transfer
    }
  }

  static std::size_t header(char* data, std::size_t, std::size_t size, void* self) {
    Receiver& receiver = *static_cast<Receiver*>(self);
    const std::string_view line(data, size);
    if (const auto digest = value_of(line, "docker-content-digest")) {
      receiver.content_digest = *digest;
    }
    if (const auto challenge = value_of(line, "www-authenticate")) {
      if (receiver.challenge.size() + challenge->size() > kMaxChallengeBytes) return 0;
      receiver.challenge += (receiver.challenge.empty() ? "" : ", ") + std::string(*challenge);
    }
    return size;
  }
};

[[noreturn]] void fail(const std::string& url, const std::string& found) {
  throw Error(
      ErrorCode::kNetwork,
      "get " + url + ": " + found + ". Check the network and the registry's name, then try again");
}

}  // namespace

struct Transfer::Handle {
  CURL* curl = nullptr;
  std::array<char, CURL_ERROR_SIZE> error{};
};

Transfer::Transfer() : handle_(std::make_unique<Handle>()) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  handle_->curl = curl_easy_init();
  if (handle_->curl == nullptr) throw Error(ErrorCode::kInternal, "get: libcurl gave no handle");
}

Transfer::~Transfer() {
  curl_easy_cleanup(handle_->curl);
}

HttpAnswer Transfer::get_once(const HttpRequest& request, const Sink& sink, std::string& redirect) {
  CURL* const curl = handle_->curl;
  const Url parts = parse_url(request.url);
  const Headers headers = headers_of(request);
  Receiver receiver{curl, &sink};
  curl_easy_reset(curl);  // keeps the connection
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, handle_->error.data());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);  // a library owns no signal handlers
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kStallBytesPerSecond);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "kiln/" KILN_VERSION);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Receiver::body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &receiver);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Receiver::header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &receiver);
  if (!request.form.empty()) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.form.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.form.c_str());
  }
  if (parts.is_loopback()) curl_easy_setopt(curl, CURLOPT_PROXY, "");
  // OpenSSL's own variable, which libcurl does not read.
  if (const char* roots = std::getenv("SSL_CERT_FILE"); roots != nullptr && *roots != '\0') {
    curl_easy_setopt(curl, CURLOPT_CAINFO, roots);
  }
  handle_->error[0] = '\0';
  ++requests_;
  const CURLcode result = curl_easy_perform(curl);
  if (receiver.failure) std::rethrow_exception(receiver.failure);
  if (result != CURLE_OK) {
    const char* detail =
        handle_->error[0] != '\0' ? handle_->error.data() : curl_easy_strerror(result);
    fail(parts.place(), detail);
  }
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  char* target = nullptr;
  curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &target);
  redirect = target != nullptr ? target : "";
  return {static_cast<int>(status), parts.place(), receiver.content_digest,
          std::move(receiver.challenge)};
}

HttpAnswer Transfer::get(const HttpRequest& request, const Sink& sink) {
  HttpRequest next = request;
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    const Url from = parse_url(next.url);
    std::string redirect;
    HttpAnswer answer = get_once(next, sink, redirect);
    if (answer.status < 300 || answer.status > 399) return answer;
    if (redirect.empty()) {
      fail(answer.url, "status " + std::to_string(answer.status) + " without a Location");
    }
    const Url to = parse_url(redirect);
    if (!to.may_be_asked() || (from.scheme == "https" && to.scheme != "https")) {
      fail(answer.url,
           "it redirects to " + to.place() + ", expected https (http only within this machine)");
    }
    if (!next.form.empty()) {
      fail(answer.url, "it redirects a login to " + to.place() + ", where Kiln does not send it");
    }
    // A presigned URL of a store refuses a second authorization; another host must not see it.
    if (!to.same_server(from)) next.authorization.clear();
    next.url = redirect;
  }
  fail(parse_url(request.url).place(), "more than " + std::to_string(kMaxRedirects) + " redirects");
}

}  // namespace kiln
