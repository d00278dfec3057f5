// SPDX-License-Identifier: Apache-2.0
//
// The pages as text: what they say, that nothing said becomes markup, and that the same facts give
// the same bytes.
#include <doctest/doctest.h>

#include "html.hpp"
#include "registry/site/pages.hpp"

namespace {

using namespace kiln;            // NOLINT(google-build-using-namespace)
using namespace kiln::registry;  // NOLINT(google-build-using-namespace)

constexpr const char* kHostile = "\"'><script>alert(1)</script>\xe2\x80\xae&amp;";

using kiln::test::has;

Variant gpu(const std::string& id, const std::string& tested) {
  Variant variant;
  variant.id = id;
  variant.tested = tested;
  if (tested != kUntested) variant.tested_on = {tested.substr(0, tested.find(','))};
  variant.manifest = {"", Digest::of(id), 1};
  variant.needs.cpu = {Arch::kX86_64, 1};
  variant.needs.toolkit = Version{12, 9};
  variant.needs.min_driver = Version{12, 0};
  variant.needs.device_code = {parse_device_code("sm_90a").value()};
  return variant;
}

SiteFacts sample(const std::string& word) {
  VersionFacts version;
  version.version = 1;
  version.index = {"", Digest::of("index"), 5};
  version.summary = word;
  version.license = word;
  version.min_loader = "0.1.0";
  version.ops = {{word,
                  word,
                  {{word, word, word, word, false, true}, {word, word, word, "", true}},
                  {{word, word}}}};
  version.variants = {
      {gpu("cu12.9-sm_90a-x86_64", "NVIDIA H200, driver 1, 2026-01-01, 9 cases"), 1500, 3000, word},
      {gpu("cu12.9-sm_90a-b", kUntested.data()), 10, 20, word}};
  version.statements = {{word, word, word}};
  version.errors = {{.measured = word, .worst = {{word, {1, word}}}}};
  version.vouched = SignedState::kSigned;
  version.keys = {std::string(64, 'a'), std::string(64, 'b')};
  version.threshold = 1;
  version.attested = "2026-02-03T04:05:06Z";
  version.yanked = word;
  version.card = word;
  version.changes = {word};
  version.problems = {word};
  SiteFacts site{word, word, "2027-01-01T00:00:00Z", {{"tiny-op", {version}}}};
  return site;
}

}  // namespace

TEST_CASE("pages: each says what is known") {
  SiteFacts site = sample("fine words");
  site.url = "https://kernels.example.org";
  site.packages[0].versions[0].yanked.clear();
  const Pages pages = make_pages(site);
  CHECK(pages.size() == 6);
  const std::string& html = pages.at("packages/tiny-op/1.html");
  CHECK(html == pages.at("packages/tiny-op/index.html"));
  for (const char* part :
       {"kiln install tiny-op@1", "kiln_require(tiny-op VERSION 1)",
        "kiln trust add https://kernels.example.org --root root.json",
        "get_kernel(&quot;tiny-op&quot;, {.version = 1})",
        "get_kernel(&quot;tiny-op&quot;, version=1)", "\xe2\x9c\x93 NVIDIA H200", "untested",
        "1.5 kB", "3.0 kB", "H100, H200", "names this index; valid until 2027-01-01T00:00:00Z",
        "fine words", "NVIDIA H200; last on 2026-01-01", "1 of 2 keys: aaaaaaaaaaaa",
        "<dt>Attested</dt><dd>2026-02-03</dd>"}) {
    CAPTURE(part);
    CHECK(has(html, part));
  }
  CHECK(has(pages.at("index.html"), "href=\"packages/tiny-op/index.html\""));
  CHECK(has(pages.at("index.html"), "tested on NVIDIA H200"));
  CHECK(pages == make_pages(site));
}

TEST_CASE("pages: what one chooses by stands above the first section") {
  SiteFacts site = sample("word");
  VersionFacts& version = site.packages[0].versions[0];
  version.yanked.clear();
  version.card = "Where and when.\n\n| M | kiln | rival |\n|---|---|---|\n| 1 | 1.0 | 1.5 |\n";
  const std::string html = make_pages(site).at("packages/tiny-op/1.html");
  const std::string top = html.substr(0, html.find("<section"));
  for (const char* part : {"kiln install tiny-op@1", "Licence", "Tested on", "Signed by",
                           "Signed until", "Attested", "<svg", "Where and when."}) {
    CAPTURE(part);
    CHECK(has(top, part));
  }
}

TEST_CASE("pages: what Kiln does not install has no lines to install it") {
  SiteFacts site = sample("word");
  VersionFacts& version = site.packages[0].versions[0];
  const auto is_offered = [&] {
    const std::string html = make_pages(site).at("packages/tiny-op/1.html");
    return has(html, "kiln install") || has(html, "get_kernel") || has(html, "#install");
  };
  CHECK_FALSE(is_offered());  // taken back
  version.yanked.clear();
  CHECK(is_offered());
  version.vouched = SignedState::kAnother;
  CHECK(is_offered());
  version.vouched = SignedState::kNone;
  CHECK_FALSE(is_offered());
}

TEST_CASE("pages: the pages of many versions grow as they do") {
  SiteFacts site = sample("word");
  const VersionFacts one = site.packages[0].versions[0];
  const auto size_of = [&](int versions) {
    site.packages[0].versions.assign(static_cast<std::size_t>(versions), one);
    for (int i = 0; i < versions; ++i) {
      site.packages[0].versions[static_cast<std::size_t>(i)].version = i + 1;
    }
    std::size_t size = 0;
    for (const auto& [name, bytes] : make_pages(site)) size += bytes.size();
    return size;
  };
  CHECK(size_of(200) < 2.2 * static_cast<double>(size_of(100)));
}

TEST_CASE("pages: variants that make a nearly empty table are listed") {
  SiteFacts site = sample("word");
  std::vector<VariantFacts>& variants = site.packages[0].versions[0].variants;
  for (int i = 0; i < 300; ++i) {
    variants.push_back({gpu("v" + std::to_string(i), kUntested.data()), 1, 1, ""});
    variants.back().variant.needs.toolkit = Version{i, 0};
    variants.back().variant.needs.device_code = {
        parse_device_code("sm_" + std::to_string(100 + i)).value()};
  }
  CHECK(make_pages(site).at("packages/tiny-op/1.html").size() < 200'000);
}

TEST_CASE("pages: hostile words stay words, in every place") {
  for (const auto& [name, html] : make_pages(sample(kHostile))) {
    if (!name.ends_with(".html")) continue;
    const std::string& page = name;  // no structured binding: clang 14 captures none
    CAPTURE(page);
    CHECK_FALSE(has(html, "<script>"));
    CHECK_FALSE(has(html, "\"'>"));
    CHECK_FALSE(has(html, "\xe2\x80\xae"));
    CHECK(has(html, "&lt;script&gt;alert(1)&lt;/script&gt;"));
  }
}

TEST_CASE("pages: a policy forbids what is not the site's own") {
  for (const auto& [name, html] : make_pages(sample("word"))) {
    if (!name.ends_with(".html")) continue;
    const std::string& page = name;  // no structured binding: clang 14 captures none
    CAPTURE(page);
    CHECK(has(html,
              "content=\"default-src 'none'; style-src 'self'; script-src 'self'; img-src "
              "'self'; base-uri 'none'; form-action 'none'\""));
    CHECK_FALSE(has(html, "style=\""));
    CHECK_FALSE(has(html, "<style"));
  }
}

TEST_CASE("pages: what the metadata says of an index is shown") {
  SiteFacts site = sample("word");
  VersionFacts& version = site.packages[0].versions[0];
  version.vouched = SignedState::kNone;
  CHECK(has(make_pages(site).at("packages/tiny-op/1.html"), "does not name this version"));
  CHECK(has(make_pages(site).at("index.html"), "not signed"));
  version.vouched = SignedState::kAnother;
  version.gets = "sha256:5";
  CHECK(has(make_pages(site).at("packages/tiny-op/1.html"), "clients still get sha256:5"));
  version.vouched = SignedState::kNobody;
  CHECK(has(make_pages(site).at("packages/tiny-op/1.html"), "this registry is not signed"));
}

TEST_CASE("pages: an older version names the current one, an empty registry says so") {
  SiteFacts site = sample("word");
  site.packages[0].versions[0].yanked.clear();
  VersionFacts next = site.packages[0].versions[0];
  next.version = 2;
  site.packages[0].versions.push_back(next);
  const Pages pages = make_pages(site);
  CHECK(has(pages.at("packages/tiny-op/1.html"), "The current version is"));
  CHECK_FALSE(has(pages.at("packages/tiny-op/2.html"), "The current version is"));
  CHECK(pages.at("packages/tiny-op/index.html") == pages.at("packages/tiny-op/2.html"));
  CHECK(has(make_pages({"t", "", "", {}}).at("index.html"), "Nothing is published yet."));
}
