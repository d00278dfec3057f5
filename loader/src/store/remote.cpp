// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <optional>
#include <utility>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "http/auth.hpp"
#include "http/retry.hpp"
#include "http/transfer.hpp"
#include "http/url.hpp"
#include "kiln/error.hpp"
#include "store/source.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

using std::chrono::seconds;

constexpr std::string_view kNextStep = "Check the registry, or the mirror or proxy before it";
constexpr std::uint64_t kSlowestBytesPerSecond = std::uint64_t{64} << 10;  // 512 kbit/s
constexpr std::uint64_t kProgressBytes = std::uint64_t{64} << 10;
constexpr int kMaxTagPages = 100;

/// What a registry needs to hear, or it answers 404 for an index.
std::string accept_documents() {
  return std::string(kMediaTypeIndex) + ", " + std::string(kMediaTypeManifest);
}

/// Statuses that may be others in a moment.
bool may_pass(int status) {
  constexpr int kPassing[] = {408, 429, 500, 502, 503, 504};
  return std::find(std::begin(kPassing), std::end(kPassing), status) != std::end(kPassing);
}

std::string seconds_text(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

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

class HttpSource final : public Source {
 public:
  HttpSource(const std::string& url, SourceOptions options, const Limits& limits)
      : Source(url),
        options_(std::move(options)),
        limits_(limits),
        transfer_(limits, options_.stop),
        authorizer_(
            [this](const HttpRequest& request, const Sink& sink) { return ask(request, sink); },
            options_.stop) {
    Url parts = parse_url(url);
    if (parts.host == "docker.io" || parts.host == "index.docker.io") {
      parts.host = "registry-1.docker.io";  // where the API of that name is
    }
    // The API stands at the server's root; a registry's path is a prefix of its repositories.
    base_ = parts.scheme + "://" + parts.host + (parts.port.empty() ? "" : ":" + parts.port) +
            "/v2" + (parts.path == "/" ? "" : parts.path) + "/";
  }

  Document index(std::string_view name, int version) override {
    const std::string url = address(name, "manifests/" + std::to_string(version));
    const std::string what = "index of " + label(name, version);
    std::string bytes;
    const HttpAnswer answer = get_document(url, accept_documents(), what, bytes);
    if (answer.status == 404) fail_no_version(name, version, registry(), versions(name));
    check_status(answer, what, url);
    check_type(answer, what);
    const Descriptor descriptor{std::string(kMediaTypeIndex), Digest::of(bytes), bytes.size()};
    // A tag promises no digest; a registry that names one must at least agree with itself.
    if (answer.content_digest.starts_with("sha256:") &&
        answer.content_digest != descriptor.digest.str()) {
      throw Error(ErrorCode::kIntegrity,
                  "verify " + what + ": digest is " + descriptor.digest.str() +
                      ", its Docker-Content-Digest header says " + quote(answer.content_digest) +
                      " (from " + answer.url + "); nothing was loaded. " + std::string(kNextStep));
    }
    return {descriptor, std::move(bytes)};
  }

  std::string manifest(std::string_view name, const Descriptor& descriptor) override {
    const std::string what = "manifest of " + std::string(name);
    const std::string url = address(name, "manifests/" + descriptor.digest.str());
    if (descriptor.size > kMaxDocumentBytes) {
      throw Error(ErrorCode::kIntegrity, "get " + what + ": " + std::to_string(descriptor.size) +
                                             " bytes, expected at most " +
                                             std::to_string(kMaxDocumentBytes) +
                                             " for a document (" + url + ")");
    }
    std::string bytes;
    check_status(get_document(url, accept_documents(), what, bytes), what, url);
    verify_bytes(bytes, descriptor, {what, url, std::string(kNextStep)});
    return bytes;
  }

  void blob(std::string_view name, const Descriptor& descriptor, BlobSink& sink) override {
    const std::string what = "blob " + descriptor.digest.str() + " of " + std::string(name);
    const std::string url = origin(name, descriptor);
    bool pieced = sink.size() > 0;
    try {
      fill(url, what, descriptor, sink, pieced);
      return sink.finish();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIntegrity || !pieced) throw;
      report(what, std::string(error.what()) + "; once more from the start");
    }
    sink.restart();
    fill(url, what, descriptor, sink, pieced);
    sink.finish();
  }

  std::vector<int> versions(std::string_view name) override {
    std::string url = address(name, "tags/list");
    const std::string what = "tags of " + std::string(name);
    std::vector<std::string> tags;
    for (int page = 0; page < kMaxTagPages; ++page) {
      std::string bytes;
      const HttpAnswer answer = get_document(url, "", what, bytes);
      if (answer.status == 404) {
        throw Error(ErrorCode::kNotFound, "find " + std::string(name) + " in " + registry() +
                                              ": there is no such package (404 from " + answer.url +
                                              "). Check the name and the registry");
      }
      check_status(answer, what, url);
      const Json json = parse_json(bytes, answer.url);
      for (const JsonView& tag : JsonView(json, answer.url).at("tags").items()) {
        tags.push_back(tag.string());
      }
      const std::string next = next_page(answer.link);
      if (next.empty()) return versions_among(tags);
      url = page_after(url, next, what);
    }
    throw Error(ErrorCode::kNetwork, "get " + what + " from " + registry() + ": more than " +
                                         std::to_string(kMaxTagPages) + " pages. " +
                                         std::string(kNextStep));
  }

  std::string origin(std::string_view name, const Descriptor& descriptor) const override {
    return address(name, "blobs/" + descriptor.digest.str());
  }

 private:
  std::string address(std::string_view name, const std::string& rest) const {
    return base_ + std::string(name) + "/" + rest;
  }

  void report(const std::string& what, const std::string& note) const {
    if (options_.on_event) options_.on_event({Event::Stage::kRetry, what, 0, 0, note});
  }

  /// A GET with the login that the registry asks for, if it asks.
  HttpAnswer get(HttpRequest request, const Sink& sink) {
    request.authorization = authorizer_.authorization(request.url);
    HttpAnswer answer = ask(request, sink);
    if (answer.status != 401) return answer;
    request.authorization = authorizer_.answer(request.url, answer);
    return ask(request, sink);
  }

  /// One place where each request passes, those to token servers too.
  HttpAnswer ask(const HttpRequest& request, const Sink& sink) {
    const int before = transfer_.requests();
    const auto account = [&] {
      for (int i = before; i < transfer_.requests(); ++i) count_request();
    };
    try {
      HttpAnswer answer = transfer_.get(request, [&](std::string_view piece) {
        count_bytes(piece.size());
        sink(piece);
      });
      account();
      return answer;
    } catch (...) {
      account();
      throw;
    }
  }

  /// Makes a request until its answer is one to judge. What `once` throws, but CutShort, passes.
  HttpAnswer persist(const std::string& what, seconds more,
                     const std::function<HttpAnswer()>& once) {
    Tries tries(limits_, more);
    transfer_.finish_by(tries.deadline());
    for (;;) {
      const std::uint64_t before = bytes_fetched();
      std::string found;
      std::optional<seconds> told;
      try {
        HttpAnswer answer = once();
        if (!may_pass(answer.status)) return answer;
        found = "get " + what + ": status " + std::to_string(answer.status) + " from " +
                answer.url + ", expected 200. Try again later";
        if (answer.status == 429 || answer.status == 503) {
          told = parse_retry_after(answer.retry_after, std::time(nullptr));
        }
      } catch (const CutShort& error) {
        found = error.what();
        if (bytes_fetched() - before >= kProgressBytes) tries.progress();
      }
      const auto wait = tries.next(told);
      if (!wait) throw Error(ErrorCode::kNetwork, found + " (gave up after " + tries.told() + ")");
      report(what, found + "; again in " + seconds_text(*wait));
      wait_for(*wait, options_.stop, "get " + what);
    }
  }

  /// A document of at most kMaxDocumentBytes, from its start with each try.
  HttpAnswer get_document(const std::string& url, const std::string& accept,
                          const std::string& what, std::string& bytes) {
    return persist(what, seconds(0), [&] {
      bytes.clear();
      return get({url, accept}, [&](std::string_view piece) {
        if (bytes.size() + piece.size() > kMaxDocumentBytes) {
          throw Error(ErrorCode::kIntegrity, "get " + what + " from " + url + ": more than " +
                                                 std::to_string(kMaxDocumentBytes) + " bytes. " +
                                                 std::string(kNextStep));
        }
        bytes += piece;
      });
    });
  }

  /// Fills the sink from where it ends. `pieced` says afterwards whether its bytes are those of
  /// more than one answer: each may have been right, and the whole wrong.
  void fill(const std::string& url, const std::string& what, const Descriptor& descriptor,
            BlobSink& sink, bool& pieced) {
    bool ranges = true;  // until the registry answers one wrongly
    const auto once = [&] {
      if (sink.size() > 0 && (!ranges || sink.size() > descriptor.size)) sink.restart();
      pieced = sink.size() > 0;
      HttpRequest request{url};
      request.from = sink.size();
      request.total = descriptor.size;
      request.begin_anew = [&] {
        pieced = false;
        sink.restart();
      };
      HttpAnswer answer = get(request, [&](std::string_view piece) { sink.write(piece); });
      if (answer.taken && !answer.has_length && sink.size() < descriptor.size) {
        throw CutShort("get " + answer.url + ": the connection ended after " +
                       std::to_string(sink.size()) + " of " + std::to_string(descriptor.size) +
                       " bytes. Check the network, then try again");
      }
      return answer;
    };
    const seconds more(static_cast<long>(descriptor.size / kSlowestBytesPerSecond));
    const HttpAnswer answer = persist(what, more, [&] {
      if (sink.size() > 0 && sink.size() == descriptor.size) return HttpAnswer{200};
      const std::uint64_t from = sink.size();
      HttpAnswer first = once();
      const bool refused = first.status == 416 || (first.status == 206 && !first.taken);
      if (from == 0 || !ranges || !refused) return first;
      report(what, "asked for the bytes from " + std::to_string(from) + " on, " + first.url +
                       " answers " + std::to_string(first.status) + ", Content-Range " +
                       quote(first.content_range) + "; once more from the start");
      ranges = false;
      return once();
    });
    check_status(answer, what, url);
  }

  /// The next page of a list must be on the same server: another one would answer for this one.
  static std::string page_after(const std::string& url, const std::string& next,
                                const std::string& what) {
    std::string target = resolve_reference(url, next);
    if (target.empty() || !parse_url(target).same_server(parse_url(url))) {
      throw Error(ErrorCode::kNetwork,
                  "get " + what + ": the list goes on at " +
                      (target.empty() ? quote(next) : parse_url(target).place()) +
                      ", expected a page of " + parse_url(url).place() + ". " +
                      std::string(kNextStep));
    }
    return target;
  }

  /// An index is known by its tag alone, so that its Content-Type must not be that of something
  /// else. Static servers know no better than a few general ones.
  static void check_type(const HttpAnswer& answer, const std::string& what) {
    std::string type = answer.content_type.substr(0, answer.content_type.find(';'));
    while (type.ends_with(' ')) type.pop_back();
    constexpr std::string_view kGeneral[] = {"", kMediaTypeIndex, "application/octet-stream",
                                             "application/json", "text/plain"};
    if (std::find(std::begin(kGeneral), std::end(kGeneral), type) != std::end(kGeneral)) return;
    throw Error(ErrorCode::kIntegrity,
                "verify " + what + ": its Content-Type is " + quote(type) + ", expected " +
                    std::string(kMediaTypeIndex) + " (from " + answer.url +
                    "); nothing was loaded. Perhaps a login page of the network answers, or a "
                    "proxy: " +
                    std::string(kNextStep));
  }

  void check_status(const HttpAnswer& answer, const std::string& what,
                    const std::string& url) const {
    if (answer.status == 200 || answer.taken) return;
    const std::string text =
        "get " + what + ": status " + std::to_string(answer.status) + " from " + answer.url;
    if (answer.status == 404) {
      throw Error(ErrorCode::kNotFound, text +
                                            ", though the version's index names it. The registry "
                                            "is incomplete: tell its publisher");
    }
    if (answer.status == 401 || answer.status == 403) {
      authorizer_.fail_refused(what, url, answer);
    }
    if (answer.status == 407) {
      throw Error(ErrorCode::kNetwork, text +
                                           ": the proxy wants a login. Put it into the URL in "
                                           "http_proxy, or list the host in NO_PROXY");
    }
    throw Error(ErrorCode::kNetwork, text + ", expected 200. Try again later");
  }

  SourceOptions options_;
  Limits limits_;
  std::string base_;
  Transfer transfer_;
  Authorizer authorizer_;
};

}  // namespace

std::unique_ptr<Source> open_http_source(const std::string& url, SourceOptions options,
                                         const Limits& limits) {
  return std::make_unique<HttpSource>(url, std::move(options), limits);
}

}  // namespace kiln
