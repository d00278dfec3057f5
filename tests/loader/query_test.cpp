// SPDX-License-Identifier: Apache-2.0
//
// has_kernel agrees with get_kernel, fallbacks are taken only where nothing fits, and the facts of
// another machine give that machine's answer.
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "documents/host.hpp"
#include "documents/manifest.hpp"
#include "install/install.hpp"
#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

/// A machine with one Hopper, as the overrides describe it; the sample packages fit it.
struct Hopper {
  Environment sm{"KILN_OVERRIDE_SM", "9.0"};
  Environment cuda{"KILN_OVERRIDE_CUDA", "12.4"};
};

/// sample@1 has a CPU and a GPU variant, sample@2 a CPU variant.
struct World {
  Scratch scratch;
  Published published{scratch / "registry"};
  World() {
    published.publish({cpu_draft(sample_library("version2"), "sample", 2)});
    published.publish({cpu_draft(sample_library("plain")), gpu_draft(sample_library("gpu"))});
  }
  Request request(int version = 1) const {
    return {.version = version, .registry = published.root().string(), .cache = scratch / "cache"};
  }
};

std::vector<std::string> files_under(const fs::path& root) {
  std::vector<std::string> files;
  if (!fs::exists(root)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// The only file under the cache whose path ends like this.
fs::path file_of(const World& world, const std::string& end) {
  for (const std::string& file : files_under(world.scratch / "cache")) {
    if (file.ends_with(end)) return file;
  }
  FAIL("no file " << end);
  return {};
}

fs::path blob_of(const World& world, const Digest& digest) {
  return world.scratch / ("cache/blobs/sha256/" + digest.hex());
}

TEST_CASE("prefetch: what it leaves in the cache is what get_kernel loads offline") {
  const World world;
  Request request = world.request();
  request.device = Device::cpu();
  const Availability found = prefetch("sample", request);
  CHECK(found);
  CHECK(found.variant == "cpu-base");
  CHECK(found.version == 1);
  CHECK(found.device == Device::cpu());
  request.offline = true;
  request.registry = "https://registry.invalid/of-another-network";
  CHECK(error_of([&] { prefetch("sample", request); }).code() == ErrorCode::kOffline);
  request.registry = world.published.root().string();
  CHECK(prefetch("sample", request).variant == found.variant);
  CHECK(get_kernel("sample", request).variant() == found.variant);
}

TEST_CASE("prefetch: throws what get_kernel throws, but for the load") {
  const World world;
  Request request = world.request(99);
  CHECK(error_of([&] { prefetch("sample", request); }).code() == ErrorCode::kNotFound);
  request = world.request();
  request.variant = "no-such-variant";
  CHECK(error_of([&] { prefetch("sample", request); }).code() == ErrorCode::kNoVariant);

  Scratch scratch;
  Published broken(scratch / "registry");
  broken.publish({cpu_draft(sample_library("no_symbol"))});
  request = {.version = 1,
             .device = Device::cpu(),
             .registry = broken.root().string(),
             .cache = scratch / "cache"};
  CHECK(prefetch("sample", request));
  CHECK(error_of([&] { get_kernel("sample", request); }).code() == ErrorCode::kLoad);
}

TEST_CASE("has_kernel: passes over what is for an install: refresh, from, on_event") {
  const World world;
  Request request = world.request();
  request.device = Device::cpu();
  request.refresh = true;
  request.from = (world.scratch / "nowhere").string();
  int told = 0;
  request.on_event = [&](const Event&) { ++told; };
  const std::vector<std::string> empty = files_under(world.scratch / "cache");
  CHECK(has_kernel("sample", request).code == ErrorCode::kOffline);
  CHECK(files_under(world.scratch / "cache") == empty);
  install("sample", {.version = 1,
                     .device = Device::cpu(),
                     .registry = request.registry,
                     .cache = request.cache});
  CHECK(has_kernel("sample", request));
  CHECK(told == 0);
}

TEST_CASE("has_kernel: agrees with an offline get_kernel, whatever is in the cache") {
  using Prepare = std::function<void(const World&, Request&)>;
  const auto installed = [](const World&, Request& request) { install("sample", request); };
  const auto then = [&](Prepare next) {
    return [=](const World& world, Request& request) {
      installed(world, request);
      next(world, request);
    };
  };
  const auto manifest = [](const World& world) {
    return world.published.drafts().at(0).variant.manifest.digest;
  };
  const auto layer = [](const World& world) {
    const Draft& draft = world.published.drafts().at(0);
    return parse_manifest(draft.manifest_bytes, "manifest").layer.digest;
  };
  const auto config = [](const World& world) {
    const Draft& draft = world.published.drafts().at(0);
    return parse_manifest(draft.manifest_bytes, "manifest").config.digest;
  };
  const auto drop_unpacked = [](const World& world) {
    fs::remove_all(world.scratch / "cache/unpacked");
  };
  struct Situation {
    std::string name;
    Prepare prepare;
    std::optional<ErrorCode> code;  ///< nothing: it is available
  };
  const std::vector<Situation> situations{
      {"no cache at all", [](const World&, Request&) {}, ErrorCode::kOffline},
      {"everything", installed, std::nullopt},
      {"everything, registry gone",
       then([](const World& world, Request&) { fs::remove_all(world.published.root()); }),
       std::nullopt},
      {"index only", then([&](const World& world, Request&) {
         fs::remove(blob_of(world, manifest(world)));
         fs::remove(blob_of(world, config(world)));
         fs::remove(blob_of(world, layer(world)));
         drop_unpacked(world);
       }),
       ErrorCode::kOffline},
      {"no config",
       then([&](const World& world, Request&) { fs::remove(blob_of(world, config(world))); }),
       ErrorCode::kOffline},
      {"layer but not unpacked", then([&](const World& world, Request&) { drop_unpacked(world); }),
       std::nullopt},
      {"neither layer nor unpacked", then([&](const World& world, Request&) {
         fs::remove(blob_of(world, layer(world)));
         drop_unpacked(world);
       }),
       ErrorCode::kOffline},
      {"unpacked without its layer",
       then([&](const World& world, Request&) { fs::remove(blob_of(world, layer(world))); }),
       std::nullopt},
      {"damaged library",
       then([](const World& world, Request&) { damage(file_of(world, "/libsample.so")); }),
       ErrorCode::kIntegrity},
      {"missing library",
       then([](const World& world, Request&) { fs::remove(file_of(world, "/libsample.so")); }),
       ErrorCode::kIntegrity},
      {"damaged manifest",
       then([&](const World& world, Request&) { damage(blob_of(world, manifest(world))); }),
       ErrorCode::kIntegrity},
      {"damaged config",
       then([&](const World& world, Request&) { damage(blob_of(world, config(world))); }),
       ErrorCode::kIntegrity},
      {"damaged layer, not unpacked", then([&](const World& world, Request&) {
         damage(blob_of(world, layer(world)));
         drop_unpacked(world);
       }),
       ErrorCode::kIntegrity},
      {"damaged ref",
       then([](const World& world, Request&) { write_file(file_of(world, "/1.json"), "{"); }),
       ErrorCode::kIntegrity},
      {"another version", then([](const World&, Request& request) { request.version = 2; }),
       ErrorCode::kOffline},
      {"no version", then([](const World&, Request& request) { request.version = 0; }),
       ErrorCode::kUsage},
      {"a pinned variant that is not there",
       then([](const World&, Request& request) { request.variant = "other"; }),
       ErrorCode::kNoVariant},
      {"denied", then([](const World&, Request& request) { request.deny = {"cpu-base"}; }),
       ErrorCode::kNoVariant},
      {"a deny list that cannot be meant",
       then([](const World&, Request& request) { request.deny = {"sha256:1"}; }),
       ErrorCode::kUsage},
      {"no such GPU",
       then([](const World&, Request& request) { request.device = Device::cuda(7); }),
       ErrorCode::kUsage},
      {"a GPU variant that is not installed",
       then([](const World&, Request& request) { request.device = Device::cuda(0); }),
       ErrorCode::kOffline},
      {"a fallback to what is there", then([](const World&, Request& request) {
         request.device = Device::cuda(0);
         request.deny = {"cu12.4-sm_90"};
         request.fallback = {Fallback::cpu()};
       }),
       std::nullopt},
      {"a fallback to what is not there", then([](const World&, Request& request) {
         request.deny = {"cpu-base"};
         request.fallback = {Fallback::other_version(2)};
       }),
       ErrorCode::kOffline},
  };
  const Hopper hopper;
  for (const Situation& situation : situations) {
    CAPTURE(situation.name);
    const World world;
    Request request = world.request();
    request.device = Device::cpu();
    situation.prepare(world, request);
    const std::vector<std::string> before = files_under(world.scratch / "cache");
    const Availability answer = has_kernel("sample", request);
    CHECK(files_under(world.scratch / "cache") == before);
    CHECK(answer.available == !situation.code.has_value());
    CHECK(static_cast<bool>(answer) == answer.available);
    request.offline = true;
    if (!situation.code) {
      CHECK_MESSAGE(answer.reason.empty(), answer.reason);
      const Kernel kernel = get_kernel("sample", request);
      CHECK(kernel.variant() == answer.variant);
      CHECK(kernel.version() == answer.version);
      CHECK(kernel.device() == answer.device);
    } else {
      CHECK_MESSAGE(answer.code == *situation.code, answer.reason);
      const Error error = error_of([&] { get_kernel("sample", request); });
      CHECK_MESSAGE(error.code() == answer.code, error.what());
      CHECK(answer.reason == error.what());
    }
  }
  MESSAGE(situations.size(), " situations");
}

TEST_CASE("fallback: the CPU variant where the GPU has none, and the kernel says so") {
  const Environment sm("KILN_OVERRIDE_SM", "8.0");
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.4");
  const World world;
  Request request = world.request();
  CHECK(error_of([&] { get_kernel("sample", request); }).code() == ErrorCode::kNoVariant);

  std::vector<Event> events;
  request.fallback = {Fallback::cpu()};
  request.on_event = [&](const Event& event) {
    if (event.stage == Event::Stage::kFallback) events.push_back(event);
  };
  const Kernel kernel = get_kernel("sample", request);
  CHECK(kernel.device() == Device::cpu());
  CHECK(kernel.variant() == "cpu-base");
  REQUIRE(kernel.fallback().size() == 1);
  CHECK(kernel.fallback()[0].device == Device::cuda(0));
  CHECK_FALSE(kernel.fallback()[0].chosen);
  CHECK(kernel.fallback()[0].decisions.size() == 2);
  REQUIRE(events.size() == 1);
  CHECK(events[0].subject == "sample@1");
  CHECK_CONTAINS(events[0].note, "no variant of sample@1 fits for cuda:0");
  CHECK_CONTAINS(events[0].note, "trying fallback cpu");
}

TEST_CASE("fallback: in order, until one fits; not asked where something does") {
  const Hopper hopper;
  const World world;
  Request request = world.request();
  request.fallback = {Fallback::cpu()};
  CHECK(get_kernel("sample", request).device() == Device::cuda(0));
  CHECK(get_kernel("sample", request).fallback().empty());

  // Version 2 has no GPU variant, so the second fallback is the one that is taken.
  request.version = 2;
  request.device = Device::cuda(0);
  request.variant = "cu12.4-sm_90";
  request.fallback = {Fallback::other_version(1)};
  const Kernel older = get_kernel("sample", request);
  CHECK(older.version() == 1);
  CHECK(older.variant() == "cu12.4-sm_90");
  CHECK(older.fallback().size() == 1);

  request.deny = {"cu12.4-sm_90"};
  request.fallback = {Fallback::other_version(1), Fallback::cpu()};
  const Kernel cpu = get_kernel("sample", request);
  CHECK(cpu.version() == 2);
  CHECK(cpu.device() == Device::cpu());
  CHECK(cpu.fallback().size() == 2);
  CHECK(cpu.fallback()[1].version == 1);
}

TEST_CASE("fallback: for no other error, and if none fits the error has every table") {
  const Hopper hopper;
  const World world;
  Request request = world.request(7);
  request.fallback = {Fallback::other_version(1), Fallback::cpu()};
  CHECK(error_of([&] { get_kernel("sample", request); }).code() == ErrorCode::kNotFound);

  request = world.request(2);
  request.device = Device::cuda(0);
  request.fallback = {Fallback::other_version(7)};
  CHECK(error_of([&] { get_kernel("sample", request); }).code() == ErrorCode::kNotFound);

  request.deny = {"cpu-base", "cu12.4-sm_90"};
  request.fallback = {Fallback::other_version(1), Fallback::cpu()};
  const Error error = error_of([&] { get_kernel("sample", request); });
  CHECK(error.code() == ErrorCode::kNoVariant);
  CHECK_CONTAINS(error.what(), "resolve sample@2: no variant fits");
  CHECK_CONTAINS(error.what(), "fallback version:1: resolve sample@1: no variant fits");
  CHECK_CONTAINS(error.what(), "fallback cpu: resolve sample@2: no variant fits");
}

TEST_CASE("every GPU: a mixed machine is refused what only one of its GPUs runs") {
  const Environment sm("KILN_OVERRIDE_SM", "9.0,8.0");
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.4");
  const World world;
  Request request = world.request();
  CHECK(get_kernel("sample", request).variant() == "cu12.4-sm_90");
  request.all_gpus = true;
  const Error error = error_of([&] { get_kernel("sample", request); });
  CHECK(error.code() == ErrorCode::kNoVariant);
  CHECK_CONTAINS(error.what(), "GPU 1 has compute capability 8.0");
}

TEST_CASE("deny: the settings' list counts as the request's own does") {
  const World world;
  write_file(world.scratch / "config.json", R"({"schema":"kiln.settings/1","deny":["cpu-base"]})");
  const Environment settings("KILN_CONFIG", (world.scratch / "config.json").string());
  Request request = world.request();
  request.device = Device::cpu();
  const Error error = error_of([&] { get_kernel("sample", request); });
  CHECK(error.code() == ErrorCode::kNoVariant);
  CHECK_CONTAINS(error.what(), "it is on the deny list");
}

TEST_CASE("deny: what no variant of the package is called is refused, and not passed over") {
  const World world;
  Request request = world.request();
  request.device = Device::cpu();
  request.deny = {"cu12.4-sm_90", "nosuch", "sha256:" + std::string(64, '0')};
  const Error error = error_of([&] { get_kernel("sample", request); });
  CHECK(error.code() == ErrorCode::kNotFound);
  CHECK_CONTAINS(error.what(), "resolve sample@1: deny nosuch, sha256:000");
  CHECK_CONTAINS(error.what(), "'kiln resolve sample@1'");
  CHECK(error_of([&] { prefetch("sample", request); }).code() == ErrorCode::kNotFound);
  CHECK_FALSE(has_kernel("sample", request));

  // A version that a fallback names has variants of its own; the settings are for all packages.
  request = world.request(2);
  request.device = Device::cpu();
  request.deny = {"cu12.4-sm_90"};
  CHECK(error_of([&] { get_kernel("sample", request); }).code() == ErrorCode::kNotFound);
  request.fallback = {Fallback::cpu(), Fallback::other_version(1)};
  CHECK(get_kernel("sample", request).version() == 2);
  write_file(world.scratch / "config.json", R"({"schema":"kiln.settings/1","deny":["nosuch"]})");
  const Environment settings("KILN_CONFIG", (world.scratch / "config.json").string());
  CHECK(get_kernel("sample", request).version() == 2);
}

TEST_CASE("deny: a variant that the registry has and the cache does not know yet may be denied") {
  const Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Draft cpu = published.drafts().front();
  Request request{.version = 1,
                  .device = Device::cpu(),
                  .registry = published.root().string(),
                  .cache = scratch / "cache"};
  CHECK(get_kernel("sample", request).variant() == "cpu-base");
  request.deny = {"cu12.4-sm_90"};
  CHECK(error_of([&] { get_kernel("sample", request); }).code() == ErrorCode::kNotFound);
  // Offline it may be one of a newer index: it is told of.
  std::string told;
  request.offline = true;
  request.on_event = [&](const Event& event) {
    if (event.stage == Event::Stage::kWarning) told += event.note;
  };
  CHECK(get_kernel("sample", request).variant() == "cpu-base");
  CHECK_CONTAINS(told, "deny cu12.4-sm_90: no variant that is known here is called so");
  CHECK(has_kernel("sample", request));
  published.publish({cpu, gpu_draft(sample_library("gpu"))});
  request.offline = false;
  CHECK(get_kernel("sample", request).variant() == "cpu-base");
  told.clear();  // the cache has what knows it now
  request.offline = true;
  CHECK(get_kernel("sample", request).variant() == "cpu-base");
  CHECK(told.empty());

  // A fallback's version that nobody has decides nothing.
  request.offline = false;
  request.deny = {"nosuch"};
  request.fallback = {Fallback::other_version(7)};
  CHECK(get_kernel("sample", request).variant() == "cpu-base");
  CHECK_CONTAINS(told, "deny nosuch");
}

TEST_CASE("host: the facts of another machine decide, and this one's overrides do not") {
  const Environment sm("KILN_OVERRIDE_SM", "8.0");
  const Environment cuda("KILN_OVERRIDE_CUDA", "11.0");
  const World world;
  Host cluster;
  cluster.cpu = world.published.drafts().at(0).variant.needs.cpu;
  cluster.arch = cluster.cpu.arch;
  cluster.glibc = Version{2, 28};
  cluster.driver = Version{12, 4};
  cluster.gpus = {{0, "NVIDIA H200", {9, 0}}};
  const Request request = world.request();
  const Host facts = parse_host(serialize_host(cluster), "cluster.json");
  const Choice selected = Install("sample", request, {.host = &facts}).choose();
  REQUIRE(selected.resolution.chosen);
  CHECK(selected.variant().id == "cu12.4-sm_90");
  CHECK(selected.resolution.host.overridden.empty());
  CHECK_CONTAINS(selected.resolution.explain(), "host of cluster.json: ");
  CHECK(install("sample", request, {.host = &facts}).package.variant.id == "cu12.4-sm_90");
}

TEST_CASE("host: facts that do not speak of a library that is looked up are not guessed") {
  Scratch scratch;
  Published published(scratch / "registry");
  Draft draft = cpu_draft(sample_library());
  draft.variant.needs.libraries = {"libc.so.6"};
  published.publish({draft});
  const Request request{
      .version = 1, .registry = published.root().string(), .cache = scratch / "cache"};
  Host host;
  host.cpu = draft.variant.needs.cpu;
  host.arch = host.cpu.arch;
  host.glibc = Version{2, 28};
  host.origin = "cluster.json";
  const Error error = error_of([&] { Install("sample", request, {.host = &host}).choose(); });
  CHECK(error.code() == ErrorCode::kUsage);
  CHECK_CONTAINS(error.what(), "the facts in cluster.json do not say whether that machine has");
  CHECK_CONTAINS(error.what(), "kiln host sample@1 --json");
  host.absent = {"libc.so.6"};  // this machine has it; that one does not
  CHECK_FALSE(Install("sample", request, {.host = &host}).choose().resolution.chosen);
  host.absent.clear();
  host.libraries = {"libc.so.6"};
  CHECK(Install("sample", request, {.host = &host}).choose().resolution.chosen == 0);
}

}  // namespace
}  // namespace kiln::test
