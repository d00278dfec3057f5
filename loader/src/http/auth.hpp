// SPDX-License-Identifier: Apache-2.0
//
// Authorizer: answers the 401 of a registry with a Bearer token or a Basic login, and remembers the
// answer for the next request. Between connection, which asks it, and credentials, which it reads
// only once a registry has refused. One for a repository; used by one thread at a time.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "http/challenge.hpp"
#include "http/credentials.hpp"
#include "http/transfer.hpp"

namespace kiln {

/// What a token must allow. A publish asks for both at once: a registry may not tell a stranger
/// whether a repository is there, and its challenge to a read names a read alone.
enum class Access { kPull, kPush };

class Authorizer {
 public:
  /// How it asks a token server: as the source asks its registry, so that it counts and stops
  /// alike.
  using Ask = std::function<HttpAnswer(const HttpRequest&, const Sink&)>;

  explicit Authorizer(Ask ask, std::stop_token stop = {},
                      std::vector<std::string> insecure_http = {}, Access access = Access::kPull)
      : ask_(std::move(ask)),
        stop_(std::move(stop)),
        insecure_http_(std::move(insecure_http)),
        access_(access) {}

  /// The Authorization header for `url`, a repository's manifest, blob or tags: what
  /// answer() found for that repository of that server, until it expires. Empty: none is known.
  std::string authorization(const std::string& url) const;

  /// The header with which to repeat, once, a request that was answered with 401. Asks the
  /// token server that the challenge names (https, or http for a registry that is itself asked
  /// over http) with this user's login, or without one if there is none. Throws kNetwork if the
  /// 401 is another server's, the challenge cannot be answered, or the token server refuses.
  std::string answer(const std::string& url, const HttpAnswer& refused);

  /// Throws kNetwork for a 401 or 403 that stays, with what was tried and what to do. `operation`:
  /// "get layer of geglu-mlp@1".
  [[noreturn]] void fail_refused(const std::string& operation, const std::string& url,
                                 const HttpAnswer& refused) const;

 private:
  struct Known {
    std::string header;
    std::chrono::steady_clock::time_point expires;
    std::string tried;  ///< "with the login of <file>, for the scope …"
  };
  struct Asked;  // one url, taken apart

  Known basic(const Asked& asked, const Login& login) const;
  std::string scope_of(const Asked& asked, const Challenge& challenge) const;
  Known bearer(const Asked& asked, const Challenge& challenge, const Login& login);

  Ask ask_;
  std::stop_token stop_;
  std::vector<std::string> insecure_http_;
  Access access_;
  std::map<std::string, Known> known_;  // by server and repository
};

}  // namespace kiln
