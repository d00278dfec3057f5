// SPDX-License-Identifier: Apache-2.0
//
// Connection: requests to one repository of a registry, with the login that it asks for, counted.
// Between transfer and auth below, and store/remote and registry's push above, which speak the OCI
// distribution API. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "http/auth.hpp"
#include "http/retry.hpp"
#include "http/transfer.hpp"

namespace kiln {

struct Settings;  // settings/settings.hpp

/// What an install cost: HTTP requests, or files read, and the bytes of their bodies.
struct Traffic {
  int requests = 0;
  std::uint64_t bytes = 0;
  std::set<std::string> left = {};  ///< mirrors that did not answer, and are not asked again
};

/// What a request for a document must accept, or a registry answers 404 for an index.
inline constexpr const char* kAcceptDocuments =
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json";

class Connection {
 public:
  /// `registry` is a canonical URL; `traffic` outlives the connection.
  Connection(const std::string& registry, std::string_view name, const Settings& settings,
             const Patience& patience, Traffic& traffic, Access access = Access::kPull);

  /// Where the API has the repository: "https://host/v2/prefix/name/".
  const std::string& root() const { return root_; }

  /// No request runs longer than to this moment.
  void finish_by(Tries::Clock::time_point until) { transfer_.finish_by(until); }

  /// One request. What the registry warns of is told to the observer, each text once. A 401 of the
  /// repository's server is answered once, with the login that it asks for. Another server, where
  /// an upload may have to go, gets none.
  HttpAnswer ask(HttpRequest request, const Sink& sink);

  /// Throws for a status that is not the expected one: TryAgain where it may be another in a
  /// moment, else kNetwork. `operation`: "get layer of geglu-mlp@1". Repeats what the server says
  /// of it, and tells a store to which the registry redirects from the registry.
  [[noreturn]] void fail_status(const HttpAnswer& answer, const std::string& operation,
                                const std::string& expected) const;

 private:
  HttpAnswer ask_once(const HttpRequest& request, const Sink& sink);

  void tell_warnings(const HttpAnswer& answer);

  std::string root_;
  Traffic& traffic_;
  Observer on_event_;
  std::set<std::string> told_;  ///< warnings
  Transfer transfer_;
  Authorizer authorizer_;
};

}  // namespace kiln
