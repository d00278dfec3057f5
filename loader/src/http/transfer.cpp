// SPDX-License-Identifier: Apache-2.0
#include "http/transfer.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>

#include "base/ascii.hpp"
#include "base/fork.hpp"
#include "base/quote.hpp"
#include "http/certificates.hpp"
#include "http/proxy.hpp"
#include "http/retry.hpp"
#include "http/url.hpp"
#include "settings/environment.hpp"

namespace kiln {
namespace {

constexpr int kMaxRedirects = 5;
constexpr long kStallBytesPerSecond = 100;
constexpr long kBufferBytes = 256L
                              << 10;  // fewer, larger pieces to hash and write than with 16 KiB
constexpr int kStopped = -1;

/// What a message says is under way; also the word of a look.
const char* verb_of(const HttpRequest& request) {
  if (request.method == HttpMethod::kPut) return "put ";
  return request.method == HttpMethod::kPost ? "post " : "get ";
}

using Headers = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

Headers headers_of(const HttpRequest& request) {
  // Blobs are hashed as they are stored: no server may compress them on the way.
  Headers list(curl_slist_append(nullptr, "Accept-Encoding: identity"), &curl_slist_free_all);
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty() && list) curl_slist_append(list.get(), (name + ": " + value).c_str());
  };
  add("Accept", request.accept);
  add("Authorization", request.authorization);
  if (request.from > 0) add("Range", "bytes=" + std::to_string(request.from) + "-");
  add("Content-Type", request.media_type);
  // libcurl would wait a second for the leave of servers that give none, and say that nothing at
  // all is a form.
  if (request.method == HttpMethod::kPut && list) curl_slist_append(list.get(), "Expect:");
  if (request.method == HttpMethod::kPost && request.form.empty() && list) {
    curl_slist_append(list.get(), "Content-Type:");
  }
  return list;
}

/// The file of trusted authorities; empty: libcurl's own choice.
std::string authorities(CURL* curl) {
  // OpenSSL's own variable, which libcurl does not read.
  if (const char* named = environment().get("SSL_CERT_FILE"); named != nullptr && *named != '\0') {
    return named;
  }
  char* file = nullptr;
  char* folder = nullptr;
  curl_easy_getinfo(curl, CURLINFO_CAINFO, &file);
  curl_easy_getinfo(curl, CURLINFO_CAPATH, &folder);
  if (file != nullptr || folder != nullptr) return {};
  static const std::string found = certificates_file();
  return found;
}

/// `subject`: "get https://…", what is under way.
[[noreturn]] void fail(const std::string& subject, const std::string& found,
                       const std::string& next =
                           "Check the network and the registry's name, then "
                           "try again") {
  throw Error(ErrorCode::kNetwork, subject + ": " + found + ". " + next);
}

/// What went wrong below HTTP. A certificate that does not hold, or a proxy that says no, says so
/// again. `proxy`: what the request goes through, unless NO_PROXY lists its host.
[[noreturn]] void fail_transfer(CURL* curl, CURLcode result, const std::string& subject,
                                const std::string& detail, const Proxy& proxy) {
  const std::string variable(proxy.variable);
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_HTTP_CONNECTCODE, &status);
  if (status >= 400 && status < 500) {
    fail(subject, "the proxy answers with status " + std::to_string(status) + " (" + detail + ")",
         "Check " + variable + ", or list the host in NO_PROXY");
  }
  // libcurl's text would be the whole value.
  const bool is_connecting =
      result == CURLE_COULDNT_RESOLVE_PROXY || result == CURLE_COULDNT_CONNECT;
  if (is_connecting && !proxy.url.empty() && !is_usable(proxy)) {
    fail(subject, "the value of " + variable + " is not a proxy's URL, http://HOST:PORT",
         "Correct or unset it, or list the host in NO_PROXY");
  }
  TryAgain again(subject + ": " + detail,
                 proxy.url.empty() ? "Check the network and the registry's name, then try again"
                                   : "Check the network, the registry's name and " + variable +
                                         ", then try again");
  switch (result) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
      again.most_tries = 2;  // a name that does not resolve rarely does so a moment later
      throw again;
    case CURLE_COULDNT_CONNECT: {
      long error = 0;
      curl_easy_getinfo(curl, CURLINFO_OS_ERRNO, &error);
      again.is_refused = error == ECONNREFUSED;
      throw again;
    }
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_FAIL_REWIND:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      throw again;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      fail(subject, detail,
           "Check the registry's name and this machine's clock; the roots of a private authority "
           "go into SSL_CERT_FILE");
    default:
      fail(subject, detail);
  }
}

/// Of the last answer: what an interim one (1xx) or a proxy's CONNECT said does not count.
HttpAnswer read_head(CURL* curl, const std::string& url) {
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  HttpAnswer answer{static_cast<int>(status), url};
  curl_header* each = nullptr;
  while ((each = curl_easy_nextheader(curl, CURLH_HEADER, -1, each)) != nullptr) {
    std::string& values = answer.headers[lower_case(each->name)];
    values += (values.empty() ? "" : ", ") + std::string(each->value);
  }
  return answer;
}

/// One answer on its way. libcurl calls back; an exception must not cross its C frames, so that it
/// waits here, and libcurl stops.
struct Arriving {
  CURL* curl;
  const HttpRequest& request;
  const Sink& sink;
  HttpAnswer answer;  ///< but for its url, known once its body begins
  std::exception_ptr failure = nullptr;
  std::uint64_t header_bytes = 0;
  std::uint64_t dropped = 0;  ///< of a body that nobody wants
  std::uint64_t sent = 0;     ///< of the request's body
  bool begun = false;
  bool enough = false;  ///< that body's rest was not waited for: the answer stands all the same

  static std::size_t take_header(char*, std::size_t, std::size_t size, Arriving* self) {
    return self->guarded(size, [&] { self->count_header(size); });
  }
  static std::size_t take_body(char* data, std::size_t, std::size_t size, Arriving* self) {
    return self->guarded(size, [&] { self->pass_on({data, size}); });
  }
  static std::size_t give_body(char* room, std::size_t, std::size_t size, Arriving* self) {
    try {
      const std::size_t given = self->request.body.read(self->sent, {room, size});
      self->sent += given;
      return given;
    } catch (...) {
      self->failure = std::current_exception();
      return CURL_READFUNC_ABORT;
    }
  }

  std::string subject() const { return verb_of(request) + answer.url; }

  /// Before the body, or where there is none after the last byte.
  void begin() {
    if (std::exchange(begun, true)) return;
    answer = read_head(curl, answer.url);
    const bool rest = answer.status == 206 && request.from > 0 && is_asked_range();
    if (answer.status != 200 && !rest) return;
    const std::string encoding = answer.header("content-encoding");
    if (!encoding.empty() && encoding != "identity") {
      throw Error(ErrorCode::kIntegrity,
                  subject() + ": the body comes with Content-Encoding " + quote(encoding) +
                      ", expected the stored bytes; nothing was loaded. Turn "
                      "compression off at the registry, or at the proxy before it");
    }
    answer.taken = true;
    if (!rest && request.from > 0 && request.begin_anew) request.begin_anew();
  }

 private:
  template <class Body>
  std::size_t guarded(std::size_t size, const Body& body) {
    try {
      body();
      return enough ? 0 : size;
    } catch (...) {
      failure = std::current_exception();
      return 0;
    }
  }

  void count_header(std::size_t size) {
    constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{256} << 10;
    header_bytes += size;
    if (header_bytes > kMaxHeaderBytes) {
      fail(subject(), "its headers have more than " + std::to_string(kMaxHeaderBytes) + " bytes",
           "Check the registry, or the proxy before it");
    }
  }

  void pass_on(std::string_view bytes) {
    begin();
    if (answer.taken) return sink(bytes);
    // A short page of an error is read to its end, so that the connection can be kept.
    constexpr std::uint64_t kMaxDroppedBytes = std::uint64_t{64} << 10;
    constexpr std::size_t kMaxRefusalBytes = 8192;
    if (answer.status >= 400) {
      answer.refusal += bytes.substr(0, kMaxRefusalBytes - answer.refusal.size());
    }
    dropped += bytes.size();
    enough = dropped > kMaxDroppedBytes;
  }

  /// "bytes 5-9/10" against what was asked for: from 5 on, of 10.
  bool is_asked_range() const {
    const std::string start =
        "bytes " + std::to_string(request.from) + "-" + std::to_string(request.total - 1) + "/";
    const std::string range = answer.header("content-range");
    return range == start + std::to_string(request.total) || range == start + "*";
  }
};

void set_method(CURL* curl, const HttpRequest& request, Arriving& arriving) {
  if (request.method == HttpMethod::kHead) curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  if (request.method == HttpMethod::kPost || !request.form.empty()) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.form.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.form.c_str());
  }
  if (request.method == HttpMethod::kPut) {
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size));
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, &Arriving::give_body);
    // No CURLOPT_SEEKFUNCTION: a body that was cut is not sent again to the same place, where the
    // server may have kept a part of it. The caller begins anew.
    curl_easy_setopt(curl, CURLOPT_READDATA, &arriving);
  }
}

}  // namespace

std::string HttpAnswer::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string() : found->second;
}

bool HttpAnswer::has_length() const {
  return headers.contains("content-length") || headers.contains("transfer-encoding");
}

struct Transfer::Handle {
  CURL* curl = curl_easy_init();
  CURLM* multi = curl_multi_init();
  std::array<char, CURL_ERROR_SIZE> error{};

  Handle() = default;
  ~Handle() {
    curl_easy_cleanup(curl);
    curl_multi_cleanup(multi);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

Transfer::Transfer(Limits limits, std::stop_token stop, std::vector<std::string> insecure_http)
    : limits_(limits), stop_(std::move(stop)), insecure_http_(std::move(insecure_http)) {
  const NoFork whole;
  static std::once_flag once;
  std::call_once(once, [] {
    // libcurl opens this file, of the caller's choice, as it is set up. Like the variables that
    // glibc itself takes out of such a process's environment.
    if (is_secure_execution()) ::unsetenv("SSLKEYLOGFILE");
    curl_global_init(CURL_GLOBAL_DEFAULT);
  });
  handle_ = std::make_unique<Handle>();
  if (handle_->curl == nullptr || handle_->multi == nullptr) {
    throw Error(ErrorCode::kInternal, "get: libcurl gave no handle");
  }
}

Transfer::~Transfer() = default;

int Transfer::perform() {
  using std::chrono::milliseconds;
  constexpr milliseconds kLongestSleep{1000};
  CURLM* const multi = handle_->multi;
  // libcurl's one-call loop would notice a stop only once a second.
  const std::stop_callback wake(stop_, [multi] { curl_multi_wakeup(multi); });
  curl_multi_add_handle(multi, handle_->curl);
  int result = kStopped;
  for (;;) {
    int running = 0;
    if (curl_multi_perform(multi, &running) != CURLM_OK) result = CURLE_FAILED_INIT;
    if (running == 0) break;
    const auto now = std::chrono::steady_clock::now();
    if (stop_.stop_requested() || now >= deadline_) break;
    const auto left = std::chrono::ceil<milliseconds>(
        std::min<std::chrono::nanoseconds>(deadline_ - now, kLongestSleep));
    curl_multi_poll(multi, nullptr, 0, static_cast<int>(left.count()), nullptr);
  }
  int waiting = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi, &waiting)) {
    if (message->msg == CURLMSG_DONE) result = message->data.result;
  }
  curl_multi_remove_handle(multi, handle_->curl);
  return result;
}

HttpAnswer Transfer::ask_once(const HttpRequest& request, const Sink& sink) {
  CURL* const curl = handle_->curl;
  const Url parts = parse_url(request.url);
  const Headers headers = headers_of(request);
  Arriving arriving{curl, request, sink, {.url = parts.place()}};
  const std::string subject = arriving.subject();
  curl_easy_reset(curl);  // keeps the connection
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, handle_->error.data());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);    // a library owns no signal handlers
  curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);  // no wait for a name server that does not answer
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(limits_.connect.count()));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kStallBytesPerSecond);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(limits_.stall.count()));
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "kiln/" KILN_VERSION);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Arriving::take_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &arriving);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Arriving::take_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &arriving);
  set_method(curl, request, arriving);
  // Always by option, even an empty one: else libcurl would read the environment at each request.
  const Proxy proxy = parts.is_loopback() ? Proxy() : proxy_of(parts.scheme);
  curl_easy_setopt(curl, CURLOPT_PROXY, proxy.url.c_str());
  curl_easy_setopt(curl, CURLOPT_NOPROXY, hosts_without_proxy().c_str());
  if (const std::string roots = authorities(curl); !roots.empty()) {
    curl_easy_setopt(curl, CURLOPT_CAINFO, roots.c_str());
  }
  handle_->error[0] = '\0';
  ++requests_;
  const int result = perform();
  if (arriving.failure) std::rethrow_exception(arriving.failure);
  if (result == kStopped) {
    if (stop_.stop_requested()) fail_cancelled(subject);
    fail(subject, "the time for it is over",
         "Try again on a faster network, or raise network.deadline_seconds in the settings");
  }
  if (result != CURLE_OK && !arriving.enough) {
    const auto code = static_cast<CURLcode>(result);
    const char* detail =
        handle_->error[0] != '\0' ? handle_->error.data() : curl_easy_strerror(code);
    fail_transfer(curl, code, subject, detail, proxy);
  }
  arriving.begin();
  return std::move(arriving.answer);
}

HttpAnswer Transfer::ask(const HttpRequest& request, const Sink& sink) {
  HttpRequest next = request;
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    const Url from = parse_url(next.url);
    HttpAnswer answer = ask_once(next, sink);
    if (answer.status < 300 || answer.status > 399) return answer;
    const std::string subject = verb_of(request) + answer.url;
    const std::string location = answer.header("location");
    if (location.empty()) {
      fail(subject, "status " + std::to_string(answer.status) + " without a Location");
    }
    const std::string redirect =
        follow_reference(next.url, location, insecure_http_, subject + ": it redirects to ");
    const Url to = parse_url(redirect);
    if (!next.form.empty()) {
      fail(subject, "it redirects a login to " + to.place() + ", where Kiln does not send it");
    }
    if (next.method == HttpMethod::kPost || next.method == HttpMethod::kPut) {
      fail(subject, "it redirects an upload to " + to.place() + ", where Kiln does not send it",
           "Name the registry by the URL that it has there");
    }
    // A presigned URL of a store refuses a second authorization; another host must not see it.
    if (!to.same_server(from)) next.authorization.clear();
    next.url = redirect;
  }
  fail(verb_of(request) + parse_url(request.url).place(),
       "more than " + std::to_string(kMaxRedirects) + " redirects");
}

}  // namespace kiln
