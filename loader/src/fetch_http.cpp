// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>

#include "auth.hpp"
#include "kiln/error.hpp"
#include "source.hpp"
#include "transfer.hpp"
#include "url.hpp"
#include "verify.hpp"

namespace kiln {
namespace {

constexpr std::string_view kNextStep = "Check the registry, or the mirror or proxy before it";

/// What a registry needs to hear, or it answers 404 for an index.
std::string accept_documents() {
  return std::string(kMediaTypeIndex) + ", " + std::string(kMediaTypeManifest);
}

class HttpSource final : public Source {
 public:
  HttpSource(const std::string& url, SourceOptions options)
      : Source(url),
        options_(std::move(options)),
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
    const std::string what = "index of " + std::string(name) + "@" + std::to_string(version);
    std::string bytes;
    const HttpAnswer answer = get(url, accept_documents(), [&](std::string_view piece) {
      if (bytes.size() + piece.size() > kMaxDocumentBytes) {
        throw Error(ErrorCode::kIntegrity, "get " + what + " from " + url + ": more than " +
                                               std::to_string(kMaxDocumentBytes) + " bytes. " +
                                               std::string(kNextStep));
      }
      bytes += piece;
    });
    if (answer.status == 404) fail_no_version(name, version, registry(), versions(name));
    check_status(answer, what, url);
    const Descriptor descriptor{std::string(kMediaTypeIndex), Digest::of(bytes), bytes.size()};
    // A tag promises no digest; a registry that names one must at least agree with itself.
    if (answer.content_digest.starts_with("sha256:") &&
        answer.content_digest != descriptor.digest.str()) {
      throw Error(ErrorCode::kIntegrity,
                  "verify " + what + ": digest is " + descriptor.digest.str() +
                      ", its Docker-Content-Digest header says " + answer.content_digest +
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
    StreamVerifier verifier(descriptor, {what, url, std::string(kNextStep)});
    const HttpAnswer answer = get(url, accept_documents(), [&](std::string_view piece) {
      verifier.update(piece);
      bytes += piece;
    });
    check_status(answer, what, url);
    verifier.finish();
    return bytes;
  }

  void blob(std::string_view name, const Descriptor& descriptor, BlobSink& sink) override {
    if (sink.size() > 0) sink.restart();
    const std::string url = origin(name, descriptor);
    const HttpAnswer answer = get(url, "", [&](std::string_view piece) { sink.write(piece); });
    check_status(answer, "blob " + descriptor.digest.str() + " of " + std::string(name), url);
    sink.finish();
  }

  std::vector<int> versions(std::string_view name) override {
    const std::string url = address(name, "tags/list");
    std::string bytes;
    const HttpAnswer answer = get(url, "", [&](std::string_view piece) {
      if (bytes.size() + piece.size() > kMaxDocumentBytes) {
        throw Error(ErrorCode::kIntegrity,
                    "get " + url + ": more than " + std::to_string(kMaxDocumentBytes) + " bytes");
      }
      bytes += piece;
    });
    if (answer.status == 404) {
      throw Error(ErrorCode::kNotFound, "find " + std::string(name) + " in " + registry() +
                                            ": there is no such package (404 from " + answer.url +
                                            "). Check the name and the registry");
    }
    check_status(answer, "tags of " + std::string(name), url);
    const Json json = parse_json(bytes, url);
    std::vector<std::string> tags;
    for (const JsonView& tag : JsonView(json, url).at("tags").items()) {
      tags.push_back(tag.string());
    }
    return versions_among(tags);
  }

  std::string origin(std::string_view name, const Descriptor& descriptor) const override {
    return address(name, "blobs/" + descriptor.digest.str());
  }

 private:
  std::string address(std::string_view name, const std::string& rest) const {
    return base_ + std::string(name) + "/" + rest;
  }

  /// A GET with the login that the registry asks for, if it asks.
  HttpAnswer get(const std::string& url, const std::string& accept, const Sink& sink) {
    HttpRequest request{url, accept, authorizer_.authorization(url)};
    HttpAnswer answer = ask(request, sink);
    if (answer.status != 401) return answer;
    request.authorization = authorizer_.answer(url, answer);
    return ask(request, sink);
  }

  /// One place where each request passes: repeating a failed one and resuming a cut one belong
  /// here.
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

  void check_status(const HttpAnswer& answer, const std::string& what,
                    const std::string& url) const {
    if (answer.status == 200) return;
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
    throw Error(ErrorCode::kNetwork, text + ", expected 200. Try again later");
  }

  SourceOptions options_;
  std::string base_;
  Transfer transfer_;
  Authorizer authorizer_;
};

}  // namespace

std::unique_ptr<Source> open_http_source(const std::string& url, SourceOptions options) {
  return std::make_unique<HttpSource>(url, std::move(options));
}

}  // namespace kiln
