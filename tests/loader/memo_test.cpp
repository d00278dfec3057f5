// SPDX-License-Identifier: Apache-2.0
//
// What get_kernel takes for the same request, and what it does not.
#include "call/memo.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "kiln/request.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("memo: requests that may mean different kernels have different keys") {
  std::vector<Request> requests(14, Request{.version = 1});
  requests[1].version = 2;
  requests[2].device = Device::cpu();
  requests[3].device = Device::cuda(1);
  requests[4].variant = "cpu";
  requests[5].allow_jit = false;
  requests[6].registry = "/a";
  requests[7].cache = "/a";
  requests[8].lock = "/a";
  requests[9].all_gpus = true;
  requests[10].deny = {"cpu"};
  requests[11].fallback = {Fallback::cpu()};
  requests[12].fallback = {Fallback::other_version(2)};
  requests[13].from = "/a";
  std::set<std::string> keys;
  for (const Request& request : requests) keys.insert(memo_key("sample", request));
  keys.insert(memo_key("sampler", requests[0]));
  keys.insert(memo_key("sample", {.version = 1, .load_mode = LoadMode::kPath}));
  // Fields do not run into each other: "ab" + "c" is not "a" + "bc".
  keys.insert(memo_key("sample", {.version = 1, .registry = "/ab", .variant = "c"}));
  keys.insert(memo_key("sample", {.version = 1, .registry = "/a", .variant = "bc"}));
  CHECK(keys.size() == requests.size() + 4);
  CHECK(memo_key("sample", requests[0]) == memo_key("sample", Request{.version = 1}));
}

TEST_CASE("memo: the environment that Kiln reads counts, any other does not") {
  const Request request{.version = 1};
  const std::string before = memo_key("sample", request);
  for (const char* name : {"KILN_REGISTRY", "KILN_CACHE", "KILN_OVERRIDE_SM", "KILN_LOAD_MODE",
                           "KILN_LOCK", "KILN_INSECURE_HTTP", "CUDA_VISIBLE_DEVICES",
                           "CUDA_DEVICE_ORDER", "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"}) {
    CAPTURE(name);
    const Environment changed(name, "/new");
    CHECK(memo_key("sample", request) != before);
  }
  const Environment other("SOMEBODY_ELSES", "/new");
  CHECK(memo_key("sample", request) == before);
}

TEST_CASE("memo: a folder named relative to the current one is another one elsewhere") {
  const Scratch scratch;
  const fs::path home = fs::current_path();
  const Request relative{.version = 1, .registry = "registry"};
  const Request absolute{.version = 1, .registry = "/registry"};
  const Request url{.version = 1, .registry = "https://example.org"};
  const std::string before_relative = memo_key("sample", relative);
  const std::string before_absolute = memo_key("sample", absolute);
  const std::string before_url = memo_key("sample", url);
  fs::current_path(scratch.path());
  const std::string relative_here = memo_key("sample", relative);
  const std::string absolute_here = memo_key("sample", absolute);
  const std::string url_here = memo_key("sample", url);
  fs::current_path(home);
  CHECK(relative_here != before_relative);
  CHECK(absolute_here == before_absolute);
  CHECK(url_here == before_url);
}

}  // namespace
}  // namespace kiln::test
