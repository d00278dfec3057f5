// SPDX-License-Identifier: Apache-2.0
#include "oci/layout.hpp"

#include <doctest/doctest.h>

#include <string>

#include "oci/tag.hpp"
#include "samples.hpp"

namespace kiln {

using test::check_throws;

namespace {

Tag tag(const std::string& name, const std::string& content) {
  return {name, {std::string(kMediaTypeIndex), Digest::of(content), content.size()}};
}

const std::string kForeign =
    R"({"manifests":[{"mediaType":"x","digest":"sha512:00","size":1},)"
    R"({"mediaType":"y","digest":"md5:00","size":1,"annotations":{"other":"1"}}]})";

}  // namespace

TEST_CASE("a layout's index comes back as it was written, in its order") {
  const std::vector<Tag> tags{tag("2", "two"), tag("", "replaced"), tag("1", "one")};
  const std::string bytes = serialize_layout_index(tags);
  CHECK(parse_layout_index(bytes, "index", Untagged::kKept) == tags);
  CHECK(parse_layout_index(bytes, "index") == std::vector<Tag>{tags[0], tags[2]});
  CHECK(parse_layout_index(serialize_layout_index({}), "index").empty());
}

TEST_CASE("what has no tag may be anything, for who wants the tags alone") {
  CHECK(parse_layout_index(kForeign, "index").empty());
  check_throws(ErrorCode::kIntegrity, {"sha512"},
               [] { parse_layout_index(kForeign, "index", Untagged::kKept); });
}

TEST_CASE("a tag that stands in a layout twice is refused by its name") {
  const std::string bytes = serialize_layout_index({tag("1", "one"), tag("2", "x"), tag("1", "b")});
  check_throws(ErrorCode::kIntegrity, {R"(r/index.json: manifests[2]: has the tag "1")"},
               [&] { parse_layout_index(bytes, "r/index.json"); });
}

TEST_CASE("a layout of another version is refused") {
  CHECK_NOTHROW(check_layout_marker(serialize_layout_marker(), "oci-layout"));
  check_throws(ErrorCode::kIntegrity, {R"("2.0.0", expected "1.0.0")"},
               [] { check_layout_marker(R"({"imageLayoutVersion":"2.0.0"})", "oci-layout"); });
  check_throws(ErrorCode::kIntegrity, {"imageLayoutVersion"},
               [] { check_layout_marker("{}", "oci-layout"); });
}

TEST_CASE("the versions among tags are those that Kiln itself would write") {
  CHECK(versions_among({"10", "2", "latest", "2", "01", "0", "-1", "+1", "1-cpu-x86-64-v3", "",
                        "1 ", "99999999999"}) == std::vector<int>{2, 10});
  CHECK(version_of_tag("2147483647") == 2147483647);
  CHECK(version_of_tag("2147483648") == 0);
}

TEST_CASE("a tag is what OCI allows") {
  CHECK(is_tag(variant_tag(1, "cu12.9-sm_90a-x86_64")));
  for (const char* text : {"", ".a", "-a", "a/b", "a:b", "a b"}) {
    CAPTURE(text);
    CHECK_FALSE(is_tag(text));
  }
  CHECK(is_tag(std::string(128, 'a')));
  CHECK_FALSE(is_tag(std::string(129, 'a')));
}

}  // namespace kiln
