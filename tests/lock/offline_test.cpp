// SPDX-License-Identifier: Apache-2.0
//
// Offline: nothing is fetched, what was installed online works, and the error says what is missing.
#include <doctest/doctest.h>

#include <filesystem>
#include <memory>

#include "install/catalog.hpp"
#include "install/install.hpp"
#include "kiln/kiln.hpp"
#include "sample_setting.hpp"
#include "server.hpp"
#include "store/cache.hpp"
#include "store/installed.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

struct OfflineSetting : MachineSetting {
  Request request(const std::string& registry, bool offline) const {
    return {.version = 1, .registry = registry, .cache = scratch / "cache", .offline = offline};
  }
};

TEST_CASE("offline: after an online install the same request needs no server") {
  OfflineSetting setting;
  setting.published.publish({cpu_draft(sample_library())});
  auto server = std::make_unique<Server>(setting.published.root());
  const std::string registry = server->url();
  const Installed online = install("sample", setting.request(registry, false));
  const std::size_t asked = server->asked().size();

  const Kernel offline = get_kernel("sample", setting.request(registry, true));
  CHECK(offline.library() == online.package.library);
  CHECK(server->asked().size() == asked);
  server.reset();
  const Installed later = install("sample", setting.request(registry, true));
  CHECK(later.package.library == online.package.library);
  CHECK(later.traffic.requests == 0);
}

TEST_CASE("offline: the error names what is missing, and what to run where") {
  OfflineSetting setting;
  setting.published.publish({cpu_draft(sample_library())});
  const Server server(setting.published.root());
  const Request offline = setting.request(server.url(), true);
  const auto refused = [&] { return error_of([&] { install("sample", offline); }); };

  const Error index = refused();
  CHECK(index.code() == ErrorCode::kOffline);
  CHECK_CONTAINS(index.what(), "fetch index of sample@1: it is not in the cache");
  CHECK_CONTAINS(index.what(), server.url());
  CHECK_CONTAINS(index.what(), "Run 'kiln install sample@1' online once");
  CHECK_FALSE(fs::exists(offline.cache));

  // With more and more of it in the cache, the next thing is what is missing.
  install("sample", setting.request(server.url(), false));
  const Cache cache(offline.cache);
  const InstalledVariant there = list_installed(cache).at(0);
  fs::remove_all(there.folder);
  install("sample", offline);  // the layer is enough
  fs::remove_all(there.folder);
  const std::vector<std::pair<Digest, std::string>> rows = {
      {there.manifest.layer.digest, "fetch layer of sample@1 cpu-base"},
      {there.manifest.config.digest, "fetch config of sample@1 cpu-base"},
      {there.variant.manifest.digest, "fetch manifest of sample@1 cpu-base"},
      {there.ref.index.digest, "fetch index of sample@1"},
  };
  const std::size_t asked = server.asked().size();
  for (const auto& row : rows) {
    cache.drop_blob(row.first);
    const Error error = refused();
    CHECK(error.code() == ErrorCode::kOffline);
    CHECK_CONTAINS(error.what(), row.second);
  }
  CHECK(server.asked().size() == asked);
}

TEST_CASE("offline: KILN_OFFLINE says it for every request, '0' and '' do not") {
  OfflineSetting setting;
  setting.published.publish({cpu_draft(sample_library())});
  const Request request = setting.request(setting.published.root().string(), false);
  {
    const Environment offline("KILN_OFFLINE", "1");
    CHECK(error_of([&] { get_kernel("sample", request); }).code() == ErrorCode::kOffline);
  }
  for (const char* online : {"", "0"}) {
    const Environment environment("KILN_OFFLINE", online);
    CHECK_NOTHROW(install("sample", request));
    fs::remove_all(request.cache);
  }
}

TEST_CASE("offline: a refresh and a version that is left out are refused in their own words") {
  OfflineSetting setting;
  setting.published.publish({cpu_draft(sample_library())});
  Request request = setting.request(setting.published.root().string(), false);
  install("sample", request);
  request.offline = true;
  request.refresh = true;
  CHECK(error_of([&] { install("sample", request); }).code() == ErrorCode::kOffline);
  request.refresh = false;
  request.version = 0;
  const Error error = error_of([&] { install("sample", request); });
  CHECK(error.code() == ErrorCode::kUsage);
  CHECK_CONTAINS(error.what(), "version is 0");
  CHECK_CONTAINS(error.what(), "offline, the cache has: 1");
  CHECK(Catalog("sample", request).known_versions() == std::vector<int>{1});
  CHECK(error_of([&] { Catalog("other", request).known_versions(); }).code() ==
        ErrorCode::kOffline);
  // One whose ref is damaged is no absent one.
  const Cache cache(request.cache);
  const fs::path ref = cache.ref_path(setting.published.root().string(), "sample", 1);
  fs::permissions(ref, fs::perms::owner_write, fs::perm_options::add);
  write_file(ref, "{");
  CHECK_CONTAINS(error_of([&] { install("sample", request); }).what(), "offline, the cache has: 1");
}

TEST_CASE("offline: nothing fits, and the error says that the registry was not asked") {
  OfflineSetting setting;
  setting.published.publish({gpu_draft(sample_library()), cpu_draft(sample_library())});
  Request request = setting.request(setting.published.root().string(), false);
  install("sample", request);
  request.offline = true;
  const Environment turing("KILN_OVERRIDE_SM", "7.5");
  const Environment driver("KILN_OVERRIDE_CUDA", "12.4");
  const Error error = error_of([&] { install("sample", request); });
  CHECK(error.code() == ErrorCode::kNoVariant);
  CHECK_CONTAINS(error.what(),
                 "the registry was not asked for newer builds: offline nothing is fetched");
}

}  // namespace
}  // namespace kiln::test
