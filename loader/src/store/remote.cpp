// SPDX-License-Identifier: Apache-2.0
//
// A registry on a server: the pull side of the OCI distribution API, which a static tree of the
// same URLs serves as well.
#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <utility>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "http/connection.hpp"
#include "http/retry.hpp"
#include "http/url.hpp"
#include "kiln/error.hpp"
#include "oci/tag.hpp"
#include "settings/settings.hpp"
#include "store/registry.hpp"

namespace kiln {
namespace {

constexpr const char* kServerAdvice = "Check the registry, or the mirror or proxy before it";
constexpr int kMaxPages = 100;
constexpr std::size_t kMaxPageBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxVersions = 100'000;
constexpr std::size_t kMaxRepositories = 100'000;

/// The target of `<…>; rel="next"` among the Link headers; empty if there is none.
std::string next_page(std::string_view link) {
  while (!link.empty()) {
    const std::size_t open = link.find('<');
    const std::size_t close = link.find('>', open);
    if (close == std::string_view::npos) return {};
    const std::string_view target = link.substr(open + 1, close - open - 1);
    link.remove_prefix(close + 1);
    const std::string_view parameters = link.substr(0, link.find('<'));
    if (parameters.find("rel=\"next\"") != std::string_view::npos ||
        parameters.find("rel=next") != std::string_view::npos) {
      return std::string(target);
    }
  }
  return {};
}

/// Statuses by which a server says that it has no such thing.
using Absent = std::span<const int>;
constexpr int kNoTag[] = {404};
constexpr int kNoCatalog[] = {403, 404, 405, 501};
constexpr int kNoReferrers[] = {404, 405, 501};

bool is_among(int status, Absent absent) {
  return std::find(absent.begin(), absent.end(), status) != absent.end();
}

/// What a tag or a list names: nothing vouches for it, and each try begins at its start. The
/// answer's status is 200, or one of `absent`.
HttpAnswer get_listed(Connection& connection, const Patience& patience, const HttpRequest& request,
                      const std::string& what, Absent absent, std::size_t most,
                      std::string& bytes) {
  HttpAnswer answer;
  persist(
      patience, what, std::chrono::seconds(0), [] { return false; },
      [&](Tries::Clock::time_point until) {
        bytes.clear();
        connection.finish_by(until);
        answer = connection.ask(request, [&](std::string_view piece) {
          if (bytes.size() + piece.size() > most) {
            throw Error(ErrorCode::kIntegrity, "get " + what + " from " + request.url +
                                                   ": more than " + std::to_string(most) +
                                                   " bytes. " + kServerAdvice);
          }
          bytes += piece;
        });
        if (answer.status == 200 || answer.taken || is_among(answer.status, absent)) return;
        connection.fail_status(answer, "get " + what, "200");
      });
  return answer;
}

/// The next page of a list must be on the same server: another one would answer for this one.
std::string page_after(const std::string& url, const std::string& next, const std::string& what) {
  std::string target = resolve_reference(url, next);
  if (target.empty() || !parse_url(target).same_server(parse_url(url))) {
    throw Error(ErrorCode::kNetwork,
                "get " + what + ": the list goes on at " +
                    (target.empty() ? quote(next) : parse_url(target).place()) +
                    ", expected a page of " + parse_url(url).place() + ". " + kServerAdvice);
  }
  return target;
}

/// A list, page by page: `add` gets each one's text and where it came from. The last answer.
HttpAnswer read_pages(Connection& connection, const Patience& patience, std::string url,
                      const std::string& what, Absent absent,
                      const std::function<void(const std::string&, const std::string&)>& add) {
  for (int page = 0; page < kMaxPages; ++page) {
    std::string bytes;
    HttpAnswer answer = get_listed(connection, patience, {url}, what, absent, kMaxPageBytes, bytes);
    if (is_among(answer.status, absent)) return answer;
    add(bytes, answer.url);
    const std::string next = next_page(answer.header("link"));
    if (next.empty()) return answer;
    url = page_after(url, next, what);
  }
  throw Error(ErrorCode::kNetwork, "get " + what + " from " + parse_url(url).place() +
                                       ": more than " + std::to_string(kMaxPages) + " pages. " +
                                       kServerAdvice);
}

class Remote final : public Repository {
 public:
  Remote(const std::string& url, std::string_view name, const Patience& patience,
         std::shared_ptr<Connection> connection)
      : url_(url),
        name_(name),
        patience_(patience),
        base_(connection->root()),
        connection_(std::move(connection)) {}

  bool exists(const Descriptor&) const override { return true; }

  void open(const Descriptor& descriptor, BlobSink& sink, const Asking& asking) const override {
    if (sink.size() > 0 && (!ranges_ || sink.size() >= descriptor.size)) sink.restart();
    const std::uint64_t from = sink.size();
    HttpRequest request{origin(descriptor)};
    if (is_document(descriptor)) request.accept = kAcceptDocuments;
    request.from = from;
    request.total = descriptor.size;
    request.begin_anew = [&] { sink.restart(); };
    const std::string what(asking.what);
    connection_->finish_by(asking.until);
    std::uint64_t taken = 0;
    const HttpAnswer answer = connection_->ask(request, [&](std::string_view piece) {
      taken += piece.size();
      sink.write(piece);
    });
    const bool refused = answer.status == 416 || (answer.status == 206 && !answer.taken);
    if (from > 0 && refused) {
      ranges_ = false;
      sink.restart();
      TryAgain again("get " + what + ": status " + std::to_string(answer.status) + " from " +
                         answer.url + " for the bytes from " + std::to_string(from) +
                         " on, Content-Range " + quote(answer.header("content-range")),
                     kServerAdvice);
      again.at_once = true;
      throw again;
    }
    check_status(answer, what);
    const std::uint64_t have = sink.size() > 0 ? sink.size() : taken;
    if (answer.taken && !answer.has_length() && have < descriptor.size) {
      throw TryAgain("get " + answer.url + ": the connection ended after " + std::to_string(have) +
                         " of " + std::to_string(descriptor.size) + " bytes",
                     "Check the network, then try again");
    }
  }

  std::string origin(const Descriptor& descriptor) const override {
    return base_ + (is_document(descriptor) ? "manifests/" : "blobs/") + descriptor.digest.str();
  }
  std::string advice() const override { return kServerAdvice; }

  Document index(int version) const override {
    const std::string url = base_ + "manifests/" + std::to_string(version);
    const std::string what = "index of " + label(name_, version);
    std::string bytes;
    const HttpAnswer answer = get_listed(*connection_, patience_, {url, kAcceptDocuments}, what,
                                         kNoTag, kMaxDocumentBytes, bytes);
    if (answer.status == 404) fail_no_version(name_, version, url_, versions());
    check_type(answer, what);
    const Descriptor descriptor{std::string(kMediaTypeIndex), Digest::of(bytes), bytes.size()};
    // A tag promises no digest; a registry that names one must at least agree with itself.
    const std::string named = answer.header("docker-content-digest");
    if (named.starts_with("sha256:") && named != descriptor.digest.str()) {
      throw Error(ErrorCode::kIntegrity,
                  "verify " + what + ": digest is " + descriptor.digest.str() +
                      ", its Docker-Content-Digest header says " + quote(named) + " (from " +
                      answer.url + "); nothing was loaded. " + kServerAdvice);
    }
    return {descriptor, std::move(bytes)};
  }

  std::optional<Document> manifest(const std::string& tag) const override {
    std::string bytes;
    const HttpAnswer answer =
        get_listed(*connection_, patience_, {base_ + "manifests/" + tag, kAcceptDocuments},
                   name_ + ":" + tag, kNoTag, kMaxDocumentBytes, bytes);
    if (answer.status == 404) return std::nullopt;
    const Descriptor descriptor{std::string(kMediaTypeManifest), Digest::of(bytes), bytes.size()};
    return Document{descriptor, std::move(bytes)};
  }

  /// By the API's own request; of a registry that does not know it, by the tag that stands in for
  /// it.
  ReferrerList referrers(const Descriptor& subject) const override {
    if (std::optional<ReferrerList> listed =
            list_referrers(*connection_, patience_, subject.digest)) {
      return *std::move(listed);
    }
    std::string bytes;
    const HttpAnswer answer =
        get_listed(*connection_, patience_,
                   {base_ + "manifests/" + referrers_tag(subject.digest), kAcceptDocuments},
                   "referrers of " + subject.digest.str(), kNoTag, kMaxDocumentBytes, bytes);
    return answer.status == 404 ? ReferrerList() : parse_referrers(bytes, answer.url);
  }

  std::vector<int> versions() const override {
    const std::string what = "tags of " + name_;
    std::vector<int> versions;
    const HttpAnswer refused =
        read_pages(*connection_, patience_, base_ + "tags/list", what, kNoTag,
                   [&](const std::string& page, const std::string& url) {
                     add_versions(page, url, versions);
                   });
    if (refused.status == 404) {
      throw Error(ErrorCode::kNotFound, "find " + name_ + " in " + url_ +
                                            ": there is no such package (404 from " + refused.url +
                                            "). Check the name and the registry");
    }
    std::sort(versions.begin(), versions.end());
    versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
    return versions;
  }

 private:
  static void add_versions(const std::string& page, const std::string& url,
                           std::vector<int>& versions) {
    const Json json = parse_others_json(page, url);
    for (const JsonView& tag : JsonView(json, url).items_of("tags")) {
      if (const int version = version_of_tag(tag.string()); version != 0) {
        versions.push_back(version);
      }
    }
    if (versions.size() <= kMaxVersions) return;
    throw Error(ErrorCode::kIntegrity, "get tags from " + url + ": more than " +
                                           std::to_string(kMaxVersions) + " versions. " +
                                           kServerAdvice);
  }

  /// An index is known by its tag alone, so that its Content-Type must not be that of something
  /// else. Static servers know no better than a few general ones.
  static void check_type(const HttpAnswer& answer, const std::string& what) {
    std::string type = answer.header("content-type");
    type = type.substr(0, type.find(';'));
    while (type.ends_with(' ')) type.pop_back();
    constexpr std::string_view kGeneral[] = {"", kMediaTypeIndex, "application/octet-stream",
                                             "application/json", "text/plain"};
    if (std::find(std::begin(kGeneral), std::end(kGeneral), type) != std::end(kGeneral)) return;
    throw Error(ErrorCode::kIntegrity,
                "verify " + what + ": its Content-Type is " + quote(type) + ", expected " +
                    std::string(kMediaTypeIndex) + " (from " + answer.url +
                    "); nothing was loaded. Perhaps a login page of the network answers, or a "
                    "proxy: " +
                    kServerAdvice);
  }

  /// Throws unless the body was taken: TryAgain for a status that may be another in a moment.
  void check_status(const HttpAnswer& answer, const std::string& what) const {
    if (answer.status == 200 || answer.taken) return;
    if (answer.status == 404) {
      throw Error(ErrorCode::kNotFound, "get " + what + ": status 404 from " + answer.url +
                                            ", though the version's index names it. The registry "
                                            "is incomplete: tell its publisher");
    }
    connection_->fail_status(answer, "get " + what, "200");
  }

  std::string url_;
  std::string name_;
  Patience patience_;
  std::string base_;
  std::shared_ptr<Connection> connection_;
  mutable bool ranges_ = true;  ///< until the registry answers one wrongly
};

}  // namespace

std::optional<ReferrerList> list_referrers(Connection& connection, const Patience& patience,
                                           const Digest& subject) {
  const std::string what = "referrers of " + subject.str();
  ReferrerList found;
  std::string url = connection.root() + "referrers/" + subject.str();
  Absent absent = kNoReferrers;
  for (int page = 0; page < kMaxPages; ++page) {
    std::string bytes;
    const HttpAnswer answer = get_listed(connection, patience, {url, kAcceptDocuments}, what,
                                         absent, kMaxDocumentBytes, bytes);
    // A server may answer any URL with a page for people.
    if (page == 0 && (answer.status != 200 || !bytes.starts_with('{'))) return std::nullopt;
    absent = {};  // it does know the request
    found = join_referrers(std::move(found), parse_referrers(bytes, answer.url));
    const std::string next = next_page(answer.header("link"));
    if (next.empty() || found.size() >= kMostReferrers) break;
    url = page_after(url, next, what);
  }
  return found;
}

std::vector<std::string> list_remote(const std::string& url, const Settings& settings,
                                     const Patience& patience, Traffic& traffic) {
  Connection connection(url, "_catalog", settings, patience, traffic);
  const Url parts = parse_url(connection.root());
  constexpr std::string_view kApi = "/v2/";
  constexpr std::string_view kName = "_catalog/";
  // The registry's path, before each of its packages: "kernels/", or nothing.
  const std::string prefix =
      parts.path.substr(kApi.size(), parts.path.size() - kApi.size() - kName.size());
  const std::string catalog =
      parts.scheme + "://" + parts.server() + std::string(kApi) + "_catalog?n=1000";
  std::vector<std::string> names;
  std::size_t seen = 0;
  const HttpAnswer answer = read_pages(
      connection, patience, catalog, "catalog of " + url, kNoCatalog,
      [&](const std::string& page, const std::string& from) {
        const Json json = parse_others_json(page, from);
        for (const JsonView& each : JsonView(json, from).items_of("repositories")) {
          const std::string name = each.string();
          if (++seen > kMaxRepositories) {
            each.fail("is one of more than " + std::to_string(kMaxRepositories) + " repositories");
          }
          if (!name.starts_with(prefix) || !is_package_name(name.substr(prefix.size()))) continue;
          names.push_back(name.substr(prefix.size()));
        }
      });
  if (is_among(answer.status, kNoCatalog)) {
    throw Error(ErrorCode::kNotFound,
                "list the packages of " + url + ": its server gives no list (status " +
                    std::to_string(answer.status) + " from " + answer.url +
                    "). Name a package: 'kiln info NAME'; or trust the registry's root: signed "
                    "metadata lists the packages");
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::unique_ptr<Repository> open_remote(const std::string& url, std::string_view name,
                                        const Patience& patience,
                                        std::shared_ptr<Connection> connection) {
  return std::make_unique<Remote>(url, name, patience, std::move(connection));
}

std::unique_ptr<Repository> open_remote(const std::string& url, std::string_view name,
                                        const Settings& settings, const Patience& patience,
                                        Traffic& traffic) {
  return open_remote(url, name, patience,
                     std::make_shared<Connection>(url, name, settings, patience, traffic));
}

}  // namespace kiln
