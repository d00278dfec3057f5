// SPDX-License-Identifier: Apache-2.0
//
// Fetch over HTTP: what a registry is asked, and everything a server may do wrong.
#include <doctest/doctest.h>

#include <functional>

#include "http/url.hpp"
#include "install/install.hpp"
#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "server.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

Request request_of(const std::string& registry, const Scratch& scratch) {
  return {.version = 1, .device = Device::cpu(), .registry = registry, .cache = scratch / "cache"};
}

TEST_CASE("http: a registry is asked four things, once, in the OCI's words") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const VariantManifest manifest = published.manifest();
  const Server server(published.root());
  const Request request = request_of(server.url(), scratch);
  CHECK(get_kernel("sample", request).variant() == "cpu-base");
  const Draft& draft = published.drafts().at(0);
  CHECK(server.asked() ==
        std::vector<std::string>{"/v2/sample/manifests/1",
                                 "/v2/sample/manifests/" + draft.variant.manifest.digest.str(),
                                 "/v2/sample/blobs/" + manifest.config.digest.str(),
                                 "/v2/sample/blobs/" + manifest.layer.digest.str()});
  for (int i = 0; i < 2; ++i) {
    CHECK_CONTAINS(server.accepts()[static_cast<std::size_t>(i)], kMediaTypeIndex);
    CHECK_CONTAINS(server.accepts()[static_cast<std::size_t>(i)], kMediaTypeManifest);
  }
  get_kernel("sample", request);
  const Installed warm = install("sample", request);
  CHECK(warm.traffic.requests == 0);
  CHECK(server.asked().size() == 4);
}

TEST_CASE("http: a path in the registry's URL is a prefix of its packages") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Server plain(published.root());
  const Server prefixed(published.root(), [&](const std::string& path) -> std::optional<Answer> {
    if (!path.starts_with("/v2/team/kernels/")) return Answer{404, "", {}, {}, false};
    return Answer{307, "", {"Location: " + plain.url("/v2/" + path.substr(17))}, {}, false};
  });
  const Installed installed =
      install("sample", request_of(prefixed.url("/team/kernels/"), scratch));
  CHECK(installed.choice.registry == prefixed.url("/team/kernels"));
  CHECK(installed.traffic.requests == 8);  // each was redirected once
  CHECK(plain.asked().size() == 4);
}

TEST_CASE("http: what a server does wrong, and which error it is") {
  struct Case {
    const char* name;
    const char* part;  // of the path that it concerns
    std::function<Answer(const std::string& body)> answer;
    ErrorCode code;
    const char* text;
  };
  const auto status = [](int code) {
    return [code](const std::string&) { return Answer{code, "no", {}, {}, false}; };
  };
  const auto redirect = [](const std::string& to) {
    return [to](const std::string&) { return Answer{302, "", {"Location: " + to}, {}, false}; };
  };
  const std::vector<Case> cases{
      {"404 of a blob", "/blobs/", status(404), ErrorCode::kNotFound, "status 404"},
      {"404 of a manifest", "/manifests/sha256", status(404), ErrorCode::kNotFound, "status 404"},
      {"401", "/manifests/1", status(401), ErrorCode::kNetwork, "asks for no scheme"},
      {"403", "/blobs/", status(403), ErrorCode::kNetwork, "came without a login"},
      {"429", "/blobs/", status(429), ErrorCode::kNetwork, "status 429"},
      {"500", "/manifests/1", status(500), ErrorCode::kNetwork, "status 500"},
      {"206 unasked", "/blobs/", status(206), ErrorCode::kNetwork, "status 206"},
      {"no answer", "/blobs/",
       [](const std::string&) {
         Answer answer;
         answer.hang_up = true;
         return answer;
       },
       ErrorCode::kNetwork, "get http://127.0.0.1"},
      {"short body", "/blobs/",
       [](const std::string& body) {
         return Answer{200, body.substr(0, body.size() / 2), {}, body.size(), false};
       },
       ErrorCode::kNetwork, "get http://127.0.0.1"},
      {"short body, and the length says so", "/blobs/",
       [](const std::string& body) {
         return Answer{200, body.substr(0, body.size() - 1), {}, {}, false};
       },
       ErrorCode::kIntegrity, "bytes of the"},
      {"more bytes than promised", "/blobs/",
       [](const std::string& body) {
         return Answer{200, body + "x", {}, {}, false};
       },
       ErrorCode::kIntegrity, "more than the"},
      {"endless body", "/blobs/",
       [](const std::string& body) {
         return Answer{200, body + std::string(8u << 20, 'x'), {}, {}, false};
       },
       ErrorCode::kIntegrity, "more than the"},
      {"empty body", "/blobs/",
       [](const std::string&) {
         return Answer{200, "", {}, {}, false};
       },
       ErrorCode::kIntegrity, "0 bytes of the"},
      {"endless index", "/manifests/1",
       [](const std::string&) {
         return Answer{200, std::string(5u << 20, ' '), {}, {}, false};
       },
       ErrorCode::kIntegrity, "more than 4194304 bytes"},
      {"a page of a captive portal", "/manifests/1",
       [](const std::string&) {
         return Answer{200, "<html>Log in</html>", {"Content-Type: text/html"}, {}, false};
       },
       ErrorCode::kIntegrity, "\"text/html\""},
      {"a digest header that the body does not have", "/manifests/1",
       [](const std::string& body) {
         return Answer{200, body, {"Docker-Content-Digest: " + Digest::of("x").str()}, {}, false};
       },
       ErrorCode::kIntegrity, "Docker-Content-Digest"},
      {"redirect without a target", "/blobs/", status(302), ErrorCode::kNetwork, "Location"},
      {"redirect to a file", "/blobs/", redirect("file:///etc/passwd"), ErrorCode::kNetwork,
       "redirects to file://"},
      {"redirect to ftp", "/blobs/", redirect("ftp://127.0.0.1/x"), ErrorCode::kNetwork,
       "redirects to ftp://"},
      {"redirect to plain http elsewhere", "/blobs/", redirect("http://192.0.2.1/x"),
       ErrorCode::kNetwork, "redirects to http://192.0.2.1/x"},
      {"redirect in a circle", "/blobs/", redirect("/v2/sample/blobs/again"), ErrorCode::kNetwork,
       "more than 5 redirects"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    Scratch scratch;
    Published published(scratch / "registry");
    published.publish({cpu_draft(sample_library())});
    const Server honest(published.root());
    const Server server(published.root(), [&](const std::string& path) -> std::optional<Answer> {
      if (path.find(each.part) == std::string::npos) return std::nullopt;
      std::string body;
      const std::string last = path.substr(path.rfind('/') + 1);
      if (last.starts_with("sha256:")) {
        body = read_file(published.blob("sample", Digest::parse(last)));
      }
      return each.answer(body);
    });
    const int before = loaded_libraries();
    const Error error = error_of([&] { get_kernel("sample", request_of(server.url(), scratch)); });
    CHECK(error.code() == each.code);
    CHECK_CONTAINS(error.what(), each.text);
    CHECK(loaded_libraries() == before);
    // Nothing of it stays: the honest registry serves the same cache.
    CHECK(get_kernel("sample", request_of(honest.url(), scratch)).version() == 1);
  }
}

TEST_CASE("http: a version or a package that is not there") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Server server(published.root());
  Request request = request_of(server.url(), scratch);
  request.version = 5;
  const Error version = error_of([&] { get_kernel("sample", request); });
  CHECK(version.code() == ErrorCode::kNotFound);
  CHECK_CONTAINS(version.what(), "published: 1");
  const Error package = error_of([&] { get_kernel("absent", request); });
  CHECK(package.code() == ErrorCode::kNotFound);
  CHECK_CONTAINS(package.what(), "there is no such package");
}

TEST_CASE("http: no server is a network error; a warm cache needs none") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  std::string url;
  {
    const Server server(published.root());
    url = server.url();
    install("sample", request_of(url, scratch));
  }
  CHECK(get_kernel("sample", request_of(url, scratch)).version() == 1);
  Request request = request_of(url, scratch);
  request.refresh = true;
  CHECK(error_of([&] { get_kernel("sample", request); }).code() == ErrorCode::kNetwork);
  // A GPU request that the cached index cannot serve: the reason stays, the network is a remark.
  request.refresh = false;
  request.device = Device::cuda(0);
  const Environment sm("KILN_OVERRIDE_SM", "9.0");
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.4");
  const Error error = error_of([&] { get_kernel("sample", request); });
  CHECK(error.code() == ErrorCode::kNoVariant);
  CHECK_CONTAINS(error.what(), "the registry was not asked for newer builds");
}

TEST_CASE("http: a host that does not resolve is asked twice, told of once, and named") {
  using std::chrono::steady_clock;
  Scratch scratch;
  std::vector<std::string> retries;
  const auto start = steady_clock::now();
  const Error error = error_of([&] {
    get_kernel("sample", {.version = 1,
                          .device = Device::cpu(),
                          .registry = "https://" + std::string(kUnknownName),
                          .cache = scratch / "cache",
                          .on_event = [&](const Event& event) {
                            if (event.stage == Event::Stage::kRetry) retries.push_back(event.note);
                          }});
  });
  CHECK(steady_clock::now() - start < std::chrono::seconds(30));
  CHECK(error.code() == ErrorCode::kNetwork);
  CHECK_CONTAINS(error.what(), "resolve host: registry.invalid");
  CHECK_CONTAINS(error.what(), "Check the network and the registry's name, then try again");
  CHECK_CONTAINS(error.what(), "gave up after 2 tries");
  REQUIRE(retries.size() == 1);
  CHECK_CONTAINS(retries[0], "registry.invalid");
  CHECK_CONTAINS(retries[0], "again in");
  CHECK(retries[0].size() < 160);  // two lines of a terminal
}

TEST_CASE("http: progress is told in bytes of the layer") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Server server(published.root());
  std::vector<std::string> stages;
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  Request request = request_of(server.url(), scratch);
  request.on_event = [&](const Event& event) {
    const std::string stage(to_string(event.stage));
    if (stages.empty() || stages.back() != stage) stages.push_back(stage);
    if (event.stage != Event::Stage::kLayer) return;
    CHECK(event.subject == "sample@1 cpu-base");
    CHECK(event.done >= done);
    done = event.done;
    total = event.total;
  };
  const Installed installed = install("sample", request);
  CHECK(stages == std::vector<std::string>{"index", "manifest", "config", "layer", "unpack"});
  CHECK(total == published.drafts().at(0).layer.size());
  CHECK(done == total);
  CHECK(installed.traffic.bytes > total);
}

TEST_CASE("url: which registries may be asked") {
  struct Case {
    const char* url;
    const char* canonical;  // empty: refused
  };
  const std::vector<Case> cases{
      {"https://Example.ORG:443/A/b/", "https://example.org/A/b"},
      {"https://example.org:5000", "https://example.org:5000"},
      {"http://localhost:5000/", "http://localhost:5000"},
      {"http://127.0.0.1:5000", "http://127.0.0.1:5000"},
      {"http://[::1]:5000/x", "http://[::1]:5000/x"},
      {"http://example.org", ""},
      {"http://127.example.org", ""},
      {"http://127.0.0.1.example.org", ""},
      {"http://localhost.example.org", ""},
      {"https://user@example.org", ""},
      {"https://example.org/?x=1", ""},
      {"https://example.org/#x", ""},
      {"https://", ""},
      {"https://exa mple.org", ""},
  };
  const auto canonical = [](const std::string& url) {
    return canonical_registry(url, load_settings());
  };
  for (const Case& each : cases) {
    CAPTURE(each.url);
    if (*each.canonical != '\0') {
      CHECK(canonical(each.url) == each.canonical);
    } else {
      CHECK(error_of([&] { canonical(each.url); }).code() == ErrorCode::kUsage);
    }
  }
  const Environment insecure("KILN_INSECURE_HTTP", "mirror.lan:5000,other.lan");
  CHECK(canonical("http://mirror.lan:5000") == "http://mirror.lan:5000");
  CHECK(canonical("http://other.lan:8080") == "http://other.lan:8080");
  CHECK(error_of([&] { canonical("http://mirror.lan"); }).code() == ErrorCode::kUsage);
}

}  // namespace
}  // namespace kiln::test
