// SPDX-License-Identifier: Apache-2.0
//
// What a folder answers to the requests of the OCI specification.
#include <doctest/doctest.h>

#include "built_fixture.hpp"
#include "documents/descriptor.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/publish.hpp"
#include "registry/site/pull_api.hpp"

namespace {

using namespace kiln;            // NOLINT(google-build-using-namespace)
using namespace kiln::registry;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

}  // namespace

TEST_CASE("pull api: each request of a client has its answer") {
  const test::TemporaryFolder folder;
  test::write_built(folder / "built", test::cpu("x86-64-v3"));
  const fs::path registry = folder / "registry";
  publish({registry, {folder / "built"}, {}}, [](const std::string&) {});
  test::write_text(folder / "secret", "{}");
  const Layout layout(registry / "tiny-op");
  const std::string index = find_tag(layout.read(), "1")->descriptor.digest.str();
  const std::string variant = find_tag(layout.read(), "1-cpu-x86-64-v3")->descriptor.digest.str();
  std::string layer;
  for (const auto& entry : fs::directory_iterator(layout.blobs_path())) {
    if (!test::read_text(entry.path()).starts_with("{")) {
      layer = "sha256:" + entry.path().filename().string();
    }
  }
  const std::string base = "/v2/tiny-op/";
  const struct {
    std::string path;
    int status;
    std::string type;
  } cases[] = {
      {"/v2/", 200, "application/json"},
      {"/v2/_catalog", 200, "application/json"},
      {base + "tags/list", 200, "application/json"},
      {base + "manifests/1", 200, std::string(kMediaTypeIndex)},
      {base + "manifests/" + index, 200, std::string(kMediaTypeIndex)},
      {base + "manifests/1-cpu-x86-64-v3", 200, std::string(kMediaTypeManifest)},
      {base + "manifests/" + variant, 200, std::string(kMediaTypeManifest)},
      {base + "blobs/" + layer, 200, "application/octet-stream"},
      {base + "referrers/" + index, 200, std::string(kMediaTypeIndex)},
      {base + "manifests/" + layer, 404, ""},
      {base + "manifests/2", 404, ""},
      {base + "manifests/", 404, ""},
      {base + "manifests/sha256:00", 404, ""},
      {base + "blobs/sha256:00", 404, ""},
      {base + "blobs/../index.json", 404, ""},
      {base + "blobs/" + layer + "/", 404, ""},
      {base + "referrers/1", 400, ""},
      {base + "referrers/sha512:00", 200, std::string(kMediaTypeIndex)},
      {base + "tags/none", 404, ""},
      {base + "none/1", 404, ""},
      {"/v2/none/manifests/1", 404, ""},
      {"/v2/../manifests/1", 404, ""},
      {"/v2/../../secret", 404, ""},
      {"/v1/tiny-op/manifests/1", 404, ""},
  };
  PullApi api(registry);
  for (const auto& each : cases) {
    CAPTURE(each.path);
    const Answer answer = api.answer({"GET", each.path});
    CHECK(answer.status == each.status);
    if (each.status == 200) CHECK(answer.type == each.type);
  }
  CHECK(api.answer({"GET", base + "manifests/1"}).digest == index);
  CHECK(api.answer({"GET", "/v2/_catalog"}).body == R"({"repositories":["tiny-op"]})");
  CHECK(api.answer({"PUT", base + "manifests/1"}).status == 405);
  CHECK(api.answer({"GET", base + "tags/list", "1"}).link ==
        "</v2/tiny-op/tags/list?n=1&last=1>; rel=\"next\"");
  const fs::path path = layout.blob_path(Digest::parse(layer));
  const Answer answer = api.answer({"GET", base + "blobs/" + layer});
  CHECK(answer.file->size() == fs::file_size(path));
  CHECK(answer.file->read(1, 1 << 20) == test::read_text(path).substr(1));
  // Whoever is in the middle of it gets no other bytes, and who comes later none.
  fs::permissions(path, fs::perms::owner_all);
  test::write_text(path, std::string(answer.file->size(), 'x'));
  CHECK(answer.file->read(1, 1 << 20).empty());
  CHECK(api.answer({"GET", base + "blobs/" + layer}).status == 404);
}
