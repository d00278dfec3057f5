// SPDX-License-Identifier: Apache-2.0
#include "http/auth.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/base64.hpp"
#include "base/join.hpp"
#include "base/percent_encoded.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "http/refusal.hpp"
#include "http/url.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr std::size_t kMaxAnswerBytes = 256u << 10;
constexpr std::size_t kMaxTokenBytes = 64u << 10;
constexpr seconds kTokenLife{60};  // where the server does not say; so the token specification
constexpr std::uint64_t kMaxTokenLifeSeconds = 3600;
constexpr const char* kTellOwner = "Tell the registry's owner";

std::string words_of(const Login& login) {
  if (login.credentials) return "with the login of " + login.credentials->origin;
  return "without a login (" +
         (login.notes.empty() ? "no file of logins is set" : join(login.notes)) + ")";
}

/// A header's value: one word of printable ASCII, so that no token can write a header of its own.
bool is_token(const std::string& text) {
  return !text.empty() && text.size() <= kMaxTokenBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

std::string basic_of(const Credentials& credentials) {
  return "Basic " + encode_base64(credentials.username + ":" + credentials.secret);
}

struct Token {
  std::string value;  ///< empty: there is none
  seconds life = kTokenLife;
};

/// The text stays out of any message: it holds a secret.
Token read_token(const std::string& text) {
  try {
    const Json json = parse_others_json(text, "token");
    const JsonView view(json, "token");
    Token token{view.string_or("token", "")};
    if (token.value.empty()) token.value = view.string_or("access_token", "");
    if (!is_token(token.value)) return {};
    const auto life = json.find("expires_in");
    if (life != json.end() && life->is_number_unsigned() && *life > 0) {
      token.life = seconds(std::min(life->get<std::uint64_t>(), kMaxTokenLifeSeconds));
    }
    return token;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

/// /v2/<repository>/{manifests,blobs,tags}/… of a server.
struct Authorizer::Asked {
  explicit Asked(const std::string& text) : url(parse_url(text)) {
    constexpr std::string_view kRoot = "/v2/";
    repository = url.path.starts_with(kRoot) ? url.path.substr(kRoot.size()) : url.path;
    for (const std::string_view part : {"/manifests/", "/blobs/", "/tags/"}) {
      repository = repository.substr(0, repository.rfind(part));
    }
  }
  std::string key() const { return url.scheme + "://" + url.server() + "/" + repository; }
  [[noreturn]] void fail(const std::string& found, const std::string& next_step) const {
    throw Error(ErrorCode::kNetwork, "log in to " + url.server() + " for " + repository + ": " +
                                         found + ". " + next_step);
  }
  std::string how_to_log_in() const {
    return "Check the package's name; if it is private, log in first: docker login " +
           url.server() + ", or podman login " + url.server();
  }

  /// Where it sends for a token: may a login go there?
  Url token_server(const std::string& realm, const std::vector<std::string>& insecure_http) const {
    Url server;
    try {
      server = parse_url(realm);
    } catch (const Error&) {
      fail("its token server is " + quote(realm) + ", expected a URL", kTellOwner);
    }
    // A registry without TLS vouches for nobody, but then it is this machine's, or trusted.
    const bool safe =
        server.scheme == "https" || (url.scheme == "http" && server.may_be_asked(insecure_http));
    if (!safe || server.has_credentials || realm.find('#') != std::string::npos) {
      fail("its token server is " + server.place() +
               ", expected https without a user or a fragment in it",
           "Nothing was sent there: tell the registry's owner");
    }
    return server;
  }

  Url url;
  std::string repository;
};

std::string Authorizer::authorization(const std::string& url) const {
  const auto found = known_.find(Asked(url).key());
  return found != known_.end() && Clock::now() < found->second.expires ? found->second.header : "";
}

std::string Authorizer::answer(const std::string& url, const HttpAnswer& refused) {
  const Asked asked(url);
  if (!parse_url(refused.url).same_server(asked.url)) {
    asked.fail("status 401 from " + refused.url + ", to which it redirects",
               "No login is sent to another server: tell the registry's owner");
  }
  const std::vector<Challenge> challenges =
      parse_challenges(refused.header("www-authenticate"), refused.url);
  const auto offered = [&](std::string_view scheme) {
    return std::find_if(challenges.begin(), challenges.end(),
                        [&](const Challenge& each) { return each.scheme == scheme; });
  };
  const auto with_token = offered("bearer");
  if (with_token == challenges.end() && offered("basic") == challenges.end()) {
    const std::string schemes =
        join(challenges, ", ", [](const Challenge& each) { return quote(each.scheme); });
    asked.fail("status 401, and it asks for " + (schemes.empty() ? "no scheme" : schemes) +
                   ", expected Bearer or Basic",
               "Use a mirror that Kiln can read");
  }
  const Login login = find_login(asked.url.server(), asked.repository, stop_);
  Known known =
      with_token != challenges.end() ? bearer(asked, *with_token, login) : basic(asked, login);
  return (known_[asked.key()] = std::move(known)).header;
}

Authorizer::Known Authorizer::basic(const Asked& asked, const Login& login) const {
  if (!login.credentials) {
    asked.fail("it wants a user and a password; Kiln came " + words_of(login),
               asked.how_to_log_in());
  }
  if (login.credentials->identity_token) {
    asked.fail("it wants a user and a password; " + login.credentials->origin +
                   " has an identity token, which only a token server takes",
               asked.how_to_log_in());
  }
  return {basic_of(*login.credentials), Clock::time_point::max(), words_of(login)};
}

std::string Authorizer::scope_of(const Asked& asked, const Challenge& challenge) const {
  std::string named = challenge.parameter("scope");
  const std::string repository = "repository:" + asked.repository + ":";
  if (named.empty()) return repository + (access_ == Access::kPush ? "pull,push" : "pull");
  if (access_ == Access::kPull) return named;
  return join(split(named, ' '), " ", [&](std::string_view each) {
    return each.starts_with(repository) ? repository + "pull,push" : std::string(each);
  });
}

Authorizer::Known Authorizer::bearer(const Asked& asked, const Challenge& challenge,
                                     const Login& login) {
  const std::string realm = challenge.parameter("realm");
  const Url server = asked.token_server(realm, insecure_http_);
  const std::string scope = scope_of(asked, challenge);
  const std::string service = challenge.parameter("service");

  std::string fields;
  const auto add = [&](std::string_view name, const std::string& value) {
    fields += (fields.empty() ? "" : "&") + std::string(name) + "=" + percent_encoded(value);
  };
  HttpRequest request{realm};
  if (login.credentials && login.credentials->identity_token) {
    add("grant_type", "refresh_token");
    add("client_id", "kiln");
    add("service", service);
    add("scope", scope);
    add("refresh_token", login.credentials->secret);
    request.form = fields;
  } else {
    if (!service.empty()) add("service", service);
    for (const std::string_view each : split(scope, ' ')) add("scope", std::string(each));
    request.url += (realm.find('?') == std::string::npos ? "?" : "&") + fields;
    if (login.credentials) request.authorization = basic_of(*login.credentials);
  }

  const auto refuse = [&](const std::string& found, const std::string& next_step) {
    asked.fail("the token server " + server.place() + " answers with " + found, next_step);
  };
  const std::string tried = words_of(login) + ", for the scope " + quote(scope);
  std::string text;
  const HttpAnswer answer = ask_(request, [&](std::string_view piece) {
    if (text.size() + piece.size() > kMaxAnswerBytes) {
      refuse("more than " + std::to_string(kMaxAnswerBytes) + " bytes", kTellOwner);
    }
    text += piece;
  });
  if (answer.status != 200) {
    refuse("status " + std::to_string(answer.status) + "; Kiln came " + tried,
           asked.how_to_log_in());
  }
  const Token token = read_token(text);
  if (token.value.empty()) {
    refuse("no token, expected JSON with token or access_token", kTellOwner);
  }
  return {"Bearer " + token.value, Clock::now() + token.life, tried};
}

void Authorizer::fail_refused(const std::string& operation, const std::string& url,
                              const HttpAnswer& refused) const {
  const Asked asked(url);
  std::string tried = "without a login, which it did not ask for";
  if (const auto known = known_.find(asked.key()); known != known_.end()) {
    tried = known->second.tried;
  }
  throw Error(ErrorCode::kNetwork, operation + ": status " + std::to_string(refused.status) +
                                       " from " + refused.url + words_of_refusal(refused) +
                                       "; Kiln came " + tried + ". " + asked.how_to_log_in());
}

}  // namespace kiln
