// SPDX-License-Identifier: Apache-2.0
#include "http/connection.hpp"

#include <algorithm>
#include <ctime>
#include <iterator>

#include "http/proxy.hpp"
#include "http/refusal.hpp"
#include "http/url.hpp"
#include "http/warning.hpp"
#include "kiln/error.hpp"
#include "settings/settings.hpp"

namespace kiln {
namespace {

/// Statuses that may be others in a moment.
bool may_pass(int status) {
  constexpr int kPassing[] = {408, 429, 500, 502, 503, 504};
  return std::find(std::begin(kPassing), std::end(kPassing), status) != std::end(kPassing);
}

/// The API stands at the server's root; a registry's path is a prefix of its repositories.
std::string api_root(const std::string& registry, std::string_view name) {
  Url parts = parse_url(registry);
  if (parts.host == "docker.io" || parts.host == "index.docker.io") {
    parts.host = "registry-1.docker.io";  // where the API of that name is
  }
  return parts.scheme + "://" + parts.server() + "/v2" + (parts.path == "/" ? "" : parts.path) +
         "/" + std::string(name) + "/";
}

/// Adds what one question cost, however it ends.
class Counting {
 public:
  Counting(const Transfer& transfer, Traffic& traffic)
      : transfer_(transfer), traffic_(traffic), before_(transfer.requests()) {}
  ~Counting() { traffic_.requests += transfer_.requests() - before_; }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

 private:
  const Transfer& transfer_;
  Traffic& traffic_;
  int before_;
};

}  // namespace

Connection::Connection(const std::string& registry, std::string_view name, const Settings& settings,
                       const Patience& patience, Traffic& traffic, Access access)
    : root_(api_root(registry, name)),
      traffic_(traffic),
      on_event_(patience.on_event),
      transfer_(patience.limits, patience.stop, settings.insecure_http),
      authorizer_(
          [this](const HttpRequest& request, const Sink& sink) { return ask_once(request, sink); },
          patience.stop, settings.insecure_http, access) {}

HttpAnswer Connection::ask(HttpRequest request, const Sink& sink) {
  if (!parse_url(request.url).same_server(parse_url(root_))) return ask_once(request, sink);
  // The login is the repository's: an upload may go on at any path of its server.
  const std::string repository = root_ + "blobs/";
  request.authorization = authorizer_.authorization(repository);
  HttpAnswer answer = ask_once(request, sink);
  if (answer.status != 401) return answer;
  request.authorization = authorizer_.answer(repository, answer);
  return ask_once(request, sink);
}

/// One place where each request passes, those to token servers too.
HttpAnswer Connection::ask_once(const HttpRequest& request, const Sink& sink) {
  const Counting counting(transfer_, traffic_);
  HttpAnswer answer = transfer_.ask(request, [&](std::string_view piece) {
    traffic_.bytes += piece.size();
    sink(piece);
  });
  tell_warnings(answer);
  return answer;
}

void Connection::tell_warnings(const HttpAnswer& answer) {
  constexpr std::size_t kMostTold = 8;
  if (!on_event_) return;
  for (const std::string& text : parse_warnings(answer.header("warning"))) {
    if (told_.size() == kMostTold || !told_.insert(text).second) continue;
    on_event_({Event::Stage::kWarning, parse_url(answer.url).server(), 0, 0, text});
  }
}

void Connection::fail_status(const HttpAnswer& answer, const std::string& operation,
                             const std::string& expected) const {
  const std::string text = operation + ": status " + std::to_string(answer.status) + " from " +
                           answer.url + words_of_refusal(answer);
  const bool is_store = !parse_url(answer.url).same_server(parse_url(root_));
  if (may_pass(answer.status)) {
    TryAgain again(text + ", expected " + expected, "Try again later");
    if (answer.status == 429 || answer.status == 503) {
      again.after = parse_retry_after(answer.header("retry-after"), std::time(nullptr));
    }
    throw again;
  }
  if (is_store && (answer.status == 401 || answer.status == 403)) {
    throw Error(ErrorCode::kNetwork,
                text + ", the store to which the registry " + parse_url(root_).server() +
                    " sends; the address that it gave does not hold there. No login helps: check "
                    "this machine's clock and try again, or tell the registry's owner");
  }
  if (answer.status == 401 || answer.status == 403) {
    authorizer_.fail_refused(operation, root_ + "blobs/", answer);
  }
  if (answer.status == 407) {
    throw Error(ErrorCode::kNetwork, text + ": the proxy wants a login. Put it into the URL in " +
                                         std::string(proxy_of("http").variable) +
                                         ", or list the host in NO_PROXY");
  }
  const bool refused = answer.status >= 400 && answer.status < 500;  // and will be again
  throw Error(ErrorCode::kNetwork,
              text + ", expected " + expected + ". " +
                  (refused ? "Ask the registry's owner: its log says why" : "Try again later"));
}

}  // namespace kiln
