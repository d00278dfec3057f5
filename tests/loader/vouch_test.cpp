// SPDX-License-Identifier: Apache-2.0
//
// Who vouches for a version: a registry with signed metadata, each attack on it, and what a cache,
// a mirror and a bundle may say of it.
#include <doctest/doctest.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/join.hpp"
#include "documents/json.hpp"
#include "install/bundle.hpp"
#include "install/catalog.hpp"
#include "install/install.hpp"
#include "install/lock.hpp"
#include "loader_paths.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "server.hpp"
#include "signed.hpp"
#include "trust/metadata.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

/// A signed registry behind a server, and a user who trusts its first root. Nothing is unsigned.
struct World {
  World() {
    fs::copy_file(paths::kSettings, scratch / "config.json");
    fs::permissions(scratch / "config.json", fs::perms(0644));
    index = published.publish({cpu_draft(sample_library())});
    metadata.add("sample", 1, index);
    metadata.publish();
    trust_root(server.url(), metadata.first_root());
  }

  Request request() const {
    return {.version = 1, .registry = server.url(), .cache = scratch / "cache"};
  }
  Request fresh() const {
    Request fresh = request();
    fresh.refresh = true;
    return fresh;
  }
  Installed install_sample() { return install("sample", request()); }
  Error refused(const Request& request) {
    return error_of([&] { install("sample", request); });
  }
  fs::path state() const {  // where the cache has the registry's metadata
    return scratch / "cache" / "tuf" / Digest::of(server.url()).hex();
  }
  /// The tag of version 1 names another index from now on, of a library that nobody signed.
  Descriptor move_tag() { return published.publish({cpu_draft(sample_library("other_build"))}); }

  Scratch scratch;
  Environment config{"KILN_CONFIG", (scratch / "config.json").string()};
  Environment nothing_unsigned{"KILN_UNSIGNED", std::nullopt};
  Published published{scratch / "registry"};
  Signed metadata{scratch / "registry"};
  Server server{scratch / "registry"};
  Descriptor index;
};

TEST_CASE("vouch: a registry that nobody vouches for is refused, and its user may say otherwise") {
  World world;
  update_trust([](Trust& trust) { trust.roots.clear(); });
  const Error error = world.refused(world.request());
  CHECK(error.code() == ErrorCode::kTrust);
  CHECK_CONTAINS(error.what(), "trust " + world.server.url() + ": no root of it is trusted here");
  CHECK_CONTAINS(error.what(), "kiln trust add " + world.server.url() + " --root root.json");
  CHECK(world.server.asked().empty());
  const std::string folder = world.published.root().string();
  CHECK(error_of([&] {
          install("sample", {.version = 1, .registry = folder, .cache = world.scratch / "c"});
        }).code() == ErrorCode::kTrust);
  update_trust([&](Trust& trust) { trust.unsigned_registries = {world.server.url(), folder}; });
  CHECK(world.install_sample().choice.version.descriptor == world.index);
  CHECK(world.server.count("kiln.tuf") == 0);
}

TEST_CASE("vouch: three requests more when cold, none when warm") {
  World world;
  CHECK(world.install_sample().choice.version.descriptor == world.index);
  // The artifact's manifest has the timestamp inside; then snapshot, targets.
  CHECK(world.server.count("/v2/kiln.tuf/") == 3);
  CHECK(world.server.count("/v2/sample/manifests/" + world.index.digest.str()) == 1);
  CHECK(world.server.count("/v2/sample/manifests/1") == 0);
  const std::size_t cold = world.server.asked().size();
  world.install_sample();
  CHECK(world.server.asked().size() == cold);
  install("sample", world.fresh());
  CHECK(world.server.count("/v2/kiln.tuf/") == 4);  // the manifest alone: nothing is newer
}

TEST_CASE("vouch: a tag that was moved and a ref that was planted choose nothing") {
  World world;
  const Descriptor other = world.move_tag();
  REQUIRE(other != world.index);
  CHECK(world.install_sample().choice.version.descriptor == world.index);
  const Cache cache(world.scratch / "cache");
  const std::string bytes = read_file(world.published.blob("sample", other.digest));
  cache.write_document(other, bytes);
  cache.write_ref({world.server.url(), "sample", 1, other}, [](const Ref&) { return true; });
  CHECK(world.install_sample().choice.version.descriptor == world.index);
  fs::remove_all(world.published.root());
  CHECK(world.install_sample().choice.version.descriptor == world.index);
}

TEST_CASE("vouch: a ref that was planted hinders nothing either, and is replaced") {
  World world;
  const Descriptor other = world.move_tag();
  const Cache cache(world.scratch / "cache");
  cache.write_document(other, read_file(world.published.blob("sample", other.digest)));
  cache.write_ref({world.server.url(), "sample", 1, other}, [](const Ref&) { return true; });
  CHECK(world.install_sample().choice.version.descriptor == world.index);
  CHECK(cache.read_ref(world.server.url(), "sample", 1)->index == world.index);
}

TEST_CASE("vouch: what a stolen key said of a version holds nobody who signs with other keys") {
  World world;
  const Descriptor evil = world.move_tag();
  world.metadata.add("sample", 1, evil);
  world.metadata.publish();
  CHECK(world.install_sample().choice.version.descriptor == evil);
  world.metadata.add("sample", 1, world.index);
  world.metadata.publish();
  for (int i = 0; i < 3; ++i) {  // by its metadata of before, then by its ref
    CHECK_CONTAINS(world.refused(world.fresh()).what(), "a published version never changes");
  }
  world.metadata.targets_key = Signer();
  world.metadata.rotate();
  world.metadata.publish();
  CHECK(install("sample", world.fresh()).choice.version.descriptor == world.index);
  CHECK(world.install_sample().choice.version.descriptor == world.index);
}

TEST_CASE("vouch: what was verified is not verified again, and nothing else is believed for it") {
  World world;
  world.install_sample();
  const fs::path verified = world.scratch / "verified";
  const std::string facts = read_file(verified);
  CHECK(facts.size() == 4 * 65);  // root, timestamp, snapshot, targets
  world.install_sample();
  CHECK(read_file(verified) == facts);
  // A cache with other targets, for which the memo has no fact: asked for anew.
  const std::string targets = read_file(world.state() / "targets.json");
  Json forged = parse_json(targets, "targets");
  forged["signed"]["targets"]["sample/1"]["length"] = 1;
  write_file(world.state() / "targets.json", dump_json(forged));
  const int asked = world.server.count("kiln.tuf");
  CHECK(world.install_sample().choice.version.descriptor == world.index);
  CHECK(world.server.count("kiln.tuf") > asked);
  CHECK(read_file(world.state() / "targets.json") == targets);
  CHECK(read_file(verified) == facts);
}

TEST_CASE("vouch: a version that was yanked is refused with the reason, offline too") {
  World world;
  world.install_sample();
  world.metadata.yank("sample", 1, "wrong for odd H");
  world.metadata.publish();
  CHECK_NOTHROW(world.install_sample());  // nobody asked yet
  Request offline = world.request();
  offline.offline = true;
  for (const Request& request : {world.fresh(), world.request(), offline}) {
    const Error error = world.refused(request);
    CHECK(error.code() == ErrorCode::kTrust);
    CHECK_CONTAINS(error.what(), "find sample@1: its publisher took it back: \"wrong for odd H\"");
  }
  world.metadata.add("sample", 1, world.index);  // and given again
  world.metadata.publish();
  CHECK_NOTHROW(world.install_sample());
}

TEST_CASE("vouch: a version that grew is the one that is signed last") {
  World world;
  world.install_sample();
  Draft second = cpu_draft(sample_library(), "sample", 1, "cpu-other");
  std::vector<Draft> both = world.published.drafts();
  both.push_back(second);
  const Descriptor grown = world.published.publish(both);
  CHECK(install("sample", world.fresh()).choice.version.descriptor == world.index);
  world.metadata.add("sample", 1, grown);
  world.metadata.publish();
  CHECK(install("sample", world.fresh()).choice.version.descriptor == grown);
  const Descriptor other = world.move_tag();
  world.metadata.add("sample", 1, other);
  world.metadata.publish();
  CHECK_CONTAINS(world.refused(world.fresh()).what(), "a published version never changes");
}

TEST_CASE("vouch: what does not hold is refused, and what was trusted stays") {
  struct Row {
    const char* what;
    std::function<void(World&)> attack;
    ErrorCode code;
    const char* text;
  };
  const Row rows[] = {
      {"a stranger's key",
       [](World& world) {
         const Signer right = world.metadata.targets_key;
         world.metadata.targets_key = Signer();
         world.metadata.publish();
         world.metadata.targets_key = right;
       },
       ErrorCode::kTrust, "signed by 0 of the keys that may, expected 1"},
      {"an older timestamp",
       [](World& world) {
         world.metadata.timestamp_version = 0;
         world.metadata.publish();
       },
       ErrorCode::kTrust, "version 1 is older than 3, which was seen before"},
      {"a newer timestamp of an older snapshot",
       [](World& world) {
         world.metadata.targets_version = 0;
         world.metadata.publish();
       },
       ErrorCode::kTrust, "it names snapshot 1, older than 3"},
      {"a newer snapshot of older targets",
       [](World& world) {
         world.metadata.publish([](const std::string& role, Json& body) {
           if (role == "snapshot") body["meta"]["targets.json"]["version"] = 2;
         });
       },
       ErrorCode::kTrust, "it names version 2 of \"targets.json\", older than 3"},
      {"an expired timestamp",
       [](World& world) {
         world.metadata.publish([](const std::string& role, Json& body) {
           if (role == "timestamp") body["expires"] = "2020-01-01T00:00:00Z";
         });
       },
       ErrorCode::kTrust, "expired at 2020-01-01T00:00:00Z"},
      {"another package's index",
       [](World& world) {
         Draft draft = cpu_draft(sample_library("other"), "other");
         const Descriptor other = world.published.publish({draft});
         write_file(world.published.blob("sample", other.digest),
                    read_file(world.published.blob("other", other.digest)));
         world.metadata.add("sample", 1, other);
         world.metadata.publish();
       },
       ErrorCode::kIntegrity, "it is the one of other@1"},
      {"a version that is not signed",
       [](World& world) {
         world.metadata.publish([](const std::string& role, Json& body) {
           if (role == "targets") body["targets"] = Json::object();
         });
       },
       ErrorCode::kNotFound, "its signed metadata does not speak of it"},
      {"no metadata", [](World& world) { fs::remove_all(world.published.root() / "kiln.tuf"); },
       ErrorCode::kNotFound, "there is no timestamp.json"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    World world;
    world.metadata.publish();
    world.metadata.publish();
    world.install_sample();
    row.attack(world);
    const Error error = world.refused(world.fresh());
    CHECK(error.code() == row.code);
    CHECK_CONTAINS(error.what(), row.text);
    if (row.code == ErrorCode::kTrust) CHECK_NOTHROW(world.install_sample());
  }
}

TEST_CASE("vouch: a stolen online key is forgotten with the next root") {
  World world;
  world.install_sample();
  world.metadata.timestamp_version = 1'000'000;  // what nothing can follow
  world.metadata.publish();
  install("sample", world.fresh());
  world.metadata.timestamp_version = 1;
  world.metadata.publish();
  CHECK_CONTAINS(world.refused(world.fresh()).what(), "is older than 1000001");
  world.metadata.online_key = Signer("ecdsa");
  world.metadata.rotate();
  world.metadata.publish();
  CHECK(install("sample", world.fresh()).choice.version.descriptor == world.index);
  CHECK(fs::exists(world.state() / "roots" / "2.json"));
  world.metadata.root_keys = {Signer("rsa")};
  world.metadata.rotate();
  world.metadata.rotate();
  world.metadata.publish();
  CHECK_NOTHROW(install("sample", world.fresh()));
  fs::remove_all(world.published.root());
  CHECK_NOTHROW(world.install_sample());  // from the first root over four others, without a server
}

TEST_CASE("vouch: a mirror that is old or lies is left, and carries bytes otherwise") {
  World world;
  fs::create_directories(world.scratch / "mirror");
  fs::copy(world.published.root(), world.scratch / "mirror",
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  write_file(world.scratch / "config.json", R"({"schema":"kiln.settings/1","mirrors":{")" +
                                                world.server.url() + R"(":[")" +
                                                (world.scratch / "mirror").string() + R"("]}})");
  world.install_sample();
  // The registry says what is newest, by one request; the mirror has all of it.
  CHECK(world.server.asked() == std::vector<std::string>{"/v2/kiln.tuf/manifests/latest"});
  world.metadata.expires = std::time(nullptr) + 60 * kDay;
  world.metadata.publish();
  fs::remove_all(world.scratch / "mirror" / "kiln.tuf");
  CHECK(install("sample", world.fresh()).choice.version.descriptor == world.index);
  CHECK(world.server.count("/v2/kiln.tuf/") > 1);
}

/// A folder with the registry as it is now, asked before the registry.
fs::path add_stale_mirror(World& world, const std::string& origin) {
  const fs::path mirror = world.scratch / "stale";
  fs::copy(world.published.root(), mirror, fs::copy_options::recursive);
  write_file(world.scratch / "config.json",
             R"({"schema":"kiln.settings/1","network":{"tries":2,"backoff_ms":10},"mirrors":{")" +
                 origin + R"(":[")" + mirror.string() + R"("]}})");
  return mirror;
}

TEST_CASE("vouch: a mirror that refuses is asked once, whatever for, and told in one line") {
  World world;
  const std::string mirror = "http://127.0.0.1:1";
  write_file(world.scratch / "config.json",
             R"({"schema":"kiln.settings/1","network":{"backoff_ms":60000},"mirrors":{")" +
                 world.server.url() + R"(":[")" + mirror + R"("]}})");
  std::vector<std::string> told;
  Request request = world.request();
  request.on_event = [&](const Event& event) {
    if (event.stage == Event::Stage::kRetry) told.push_back(event.note);
  };
  CHECK(install("sample", request).choice.version.descriptor == world.index);
  CAPTURE(join(told, "\n"));
  REQUIRE(told.size() == 1);
  CHECK_CONTAINS(told.front(), mirror + " is left: ");
}

TEST_CASE("vouch: a mirror that is behind, and holds, decides nothing") {
  World world;
  const fs::path mirror = add_stale_mirror(world, world.server.url());
  std::vector<std::string> told;
  Request request = world.request();
  request.on_event = [&](const Event& event) {
    if (event.stage == Event::Stage::kRetry) told.push_back(event.note);
  };
  SUBCASE("that a version is not there") {
    world.metadata.add(
        "sample", 2, world.published.publish({cpu_draft(sample_library("version2"), "sample", 2)}));
    world.metadata.publish();
    request.version = 2;
    CHECK(install("sample", request).choice.version.index.version == 2);
  }
  SUBCASE("that a version may be installed which was taken back") {
    world.metadata.yank("sample", 1, "it computes nonsense");
    world.metadata.publish();
    const Error error = world.refused(request);
    CHECK(error.code() == ErrorCode::kTrust);
    CHECK_CONTAINS(error.what(), "it computes nonsense");
  }
  REQUIRE_FALSE(told.empty());
  CHECK_CONTAINS(told.front(), mirror.string() + " is behind: its timestamp is 1, " +
                                   world.server.url() + " has 2");
}

TEST_CASE("vouch: a publisher who has signed nothing hides no other's packages") {
  World world;
  const Signer acme;
  world.metadata.publish([&](const std::string& role, Json& body) {
    if (role != "targets") return;
    const Json key = {{"keytype", acme.key().type},
                      {"scheme", acme.key().scheme},
                      {"keyval", {{"public", acme.key().value}}}};
    Json left = role_of({acme});
    left.update({{"name", "acme"}, {"terminating", true}, {"paths", Json::array({"acme-*/*"})}});
    body["delegations"] = {{"keys", {{acme.id(), key}}}, {"roles", Json::array({left})}};
  });
  const SearchResult found = search(world.request(), {});
  REQUIRE(found.packages.size() == 1);
  CHECK(found.packages.front().name == "sample");
  REQUIRE(found.unread.size() == 1);
  CHECK(found.unread.front().role == "acme");
  CHECK_CONTAINS(found.unread.front().problem.what(), "who signs that has not signed yet");
  CHECK(Catalog("sample", world.request()).published().size() == 1);
  // Of acme's it is not said that there are none: nobody can tell.
  const Error error = error_of([&] { Catalog("acme-op", world.request()).published(); });
  CHECK(error.code() == ErrorCode::kTrust);
  CHECK_CONTAINS(error.what(), "acme.json");
}

TEST_CASE("vouch: a version that was taken back is not recommended") {
  World world;
  const Environment sm("KILN_OVERRIDE_SM", "8.0");
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.4");
  for (const int version : {2, 3}) {
    Draft fitting = gpu_draft(sample_library("gpu"), "sample", version);
    fitting.variant.id = "cu12.4-sm_80";
    fitting.variant.needs.device_code = {{DeviceCode::Kind::kSass, {8, 0}, 0}};
    world.metadata.add("sample", version, world.published.publish({fitting}));
  }
  world.metadata.publish();
  Request request = world.fresh();
  request.device = Device::cuda(0);
  CHECK_CONTAINS(world.refused(request).what(), "sample@3 has a build for this machine");
  world.metadata.yank("sample", 3, "wrong sums");
  world.metadata.publish();
  CHECK_CONTAINS(world.refused(request).what(), "sample@2 has a build for this machine");
  world.metadata.yank("sample", 2, "wrong sums");
  world.metadata.publish();
  const Error error = world.refused(request);
  CHECK(error.code() == ErrorCode::kNoVariant);
  CHECK(std::string(error.what()).find("has a build for this machine") == std::string::npos);
}

TEST_CASE("vouch: of a reason of any length the beginning is kept, and the yank counts") {
  World world;
  std::string reason = "xx";  // so that the bound is within a character
  for (int i = 0; i < 1000; ++i) reason += "\u20ac";
  world.metadata.yank("sample", 1, reason);
  world.metadata.publish();
  CHECK(world.refused(world.request()).code() == ErrorCode::kTrust);
  const std::vector<PublishedVersion> versions = Catalog("sample", world.request()).published();
  REQUIRE(versions.size() == 1);
  CHECK(versions.front().yanked == reason.substr(0, 299) + "...");
}

TEST_CASE("vouch: offline, what is listed is what the cached metadata speaks of") {
  World world;
  world.install_sample();
  world.metadata.publish([](const std::string& role, Json& body) {
    if (role == "targets") body["targets"]["sample/2"] = body["targets"]["sample/1"];
    if (role == "targets") body["targets"].erase("sample/1");
  });
  Catalog("sample", world.request()).published();  // takes it into the cache
  const std::size_t asked = world.server.asked().size();
  Request offline = world.request();
  offline.offline = true;
  Catalog catalog("sample", offline);
  const std::vector<PublishedVersion> versions = catalog.published();
  REQUIRE(versions.size() == 1);
  CHECK(versions.front().version == 2);
  CHECK(catalog.obtainable().empty());
  const Error error = error_of([&] { catalog.newest_version(); });
  CHECK(error.code() == ErrorCode::kOffline);
  CHECK_CONTAINS(error.what(), "speaks of no version that the cache has. Run it online once");
  fs::remove(world.state() / "targets.json");  // then the cache's own list is all there is
  CHECK(catalog.newest_version() == 1);
  CHECK(world.server.asked().size() == asked);
}

TEST_CASE("vouch: of more roles than are asked it is said that the rest is not known") {
  World world;
  world.metadata.publish([](const std::string& role, Json& body) {
    if (role != "targets") return;
    Json roles = Json::array();
    for (int i = 0; i < 4097; ++i) {
      roles.push_back({{"name", "role-" + std::to_string(i)},
                       {"keyids", Json::array()},
                       {"threshold", 1},
                       {"terminating", true},
                       {"paths", Json::array({"acme-*/*"})}});
    }
    body["delegations"] = {{"keys", Json::object()}, {"roles", std::move(roles)}};
  });
  const SearchResult found = search(world.request(), {});
  CHECK(found.packages.size() == 1);
  REQUIRE(found.unread.size() == 4097);
  CHECK(found.unread.back().problem.code() == ErrorCode::kTrust);
  CHECK_CONTAINS(found.unread.back().problem.what(),
                 "more than 4096 roles speak of its versions. Tell the registry's publisher");
}

TEST_CASE("vouch: where the registry does not answer, the newest of its mirrors decides") {
  World world;
  const std::string gone = "http://127.0.0.1:9";
  trust_root(gone, world.metadata.first_root());
  add_stale_mirror(world, gone);
  const Request request{.version = 1, .registry = gone, .cache = world.scratch / "cache"};
  CHECK(install("sample", request).choice.version.descriptor == world.index);
  fs::remove_all(world.scratch / "stale" / "kiln.tuf");
  const Request other{.version = 1, .registry = gone, .cache = world.scratch / "other"};
  const Error error = world.refused(other);  // the registry's own reason, and the mirror's
  CHECK(error.code() == ErrorCode::kNetwork);
  CHECK_CONTAINS(error.what(), "get " + gone);
  CHECK_CONTAINS(error.what(),
                 "mirror " + (world.scratch / "stale").string() + ": fetch trust metadata of ");
}

TEST_CASE("vouch: offline, what the cache's metadata says counts; without any nothing does") {
  World world;
  Request offline = world.request();
  offline.offline = true;
  CHECK(world.refused(offline).code() == ErrorCode::kOffline);
  world.install_sample();
  CHECK(install("sample", offline).choice.version.descriptor == world.index);
  damage(world.state() / "targets.json");
  CHECK(world.refused(offline).code() == ErrorCode::kOffline);
  CHECK_NOTHROW(world.install_sample());  // fetched again
  CHECK(install("sample", offline).choice.version.descriptor == world.index);
}

TEST_CASE("vouch: a bundle carries the metadata, and what expired on the way is told") {
  World world;
  world.metadata.expires = std::time(nullptr) + 2;
  world.metadata.publish();
  const fs::path file = world.scratch / "bundle.tar";
  create_bundle({{.name = "sample", .request = world.request(), .all_variants = true}}, file);
  fs::remove_all(world.published.root());
  Request carried = world.request();
  carried.cache = world.scratch / "there";
  carried.from = file.string();
  std::string told;
  carried.on_event = [&](const Event& event) { told += event.note + "\n"; };
  CHECK(install("sample", carried).choice.version.descriptor == world.index);
  CHECK(told.find("expired") == std::string::npos);
  while (std::time(nullptr) <= world.metadata.expires) {
  }
  carried.refresh = true;
  CHECK(install("sample", carried).choice.version.descriptor == world.index);
  CHECK_CONTAINS(told, "timestamp.json of " + world.server.url() + ": version 2 expired at " +
                           trust::to_text(world.metadata.expires));
}

TEST_CASE("vouch: a bundle that a lock file pins carries the metadata that speaks of it") {
  World world;
  Request locked = world.request();
  std::vector<std::string> unread;
  const fs::path lock = world.scratch / "kiln.lock";
  write_lockfile(lock, {{"sample", lock_kernel("sample", locked, unread)}});
  locked.lock = lock;
  const fs::path file = world.scratch / "bundle.tar";
  const auto create = [&](const Request& request) {
    const std::vector<BundlePart> parts{
        {.name = "sample", .request = request, .all_variants = true}};
    return create_bundle(parts, file).front().left_out;
  };
  CHECK(create(locked) == "");
  Request carried = world.request();
  carried.cache = world.scratch / "there";
  carried.from = file.string();
  CHECK(install("sample", carried).choice.version.descriptor == world.index);
  // Where it does not speak of what is pinned, or cannot be had, the lock file vouches alone.
  const auto installs_by_lock = [&](const std::string& name) {
    Request there{.cache = world.scratch / name};
    there.lock = lock;
    there.from = file.string();
    CHECK(install("sample", there).choice.version.descriptor == world.index);
  };
  locked.offline = true;
  CHECK_CONTAINS(create(locked), "offline nobody is asked");
  installs_by_lock("offline");
  locked.offline = false;
  world.metadata.add(
      "sample", 1,
      world.published.publish({cpu_draft(sample_library()), gpu_draft(sample_library("gpu"))}));
  world.metadata.publish();
  CHECK_CONTAINS(create(locked), "another index of it is signed by now, sha256:");
  installs_by_lock("older");
  // Without a lock file, a bundle of what was signed last is made where that can be asked.
  install("sample", world.fresh());
  Request offline = world.request();
  offline.offline = true;
  const Error error = error_of([&] { create(offline); });
  CHECK(error.code() == ErrorCode::kOffline);
  CHECK_CONTAINS(error.what(), "Make the bundle online");
  // An unsigned registry has none to leave out.
  update_trust([&](Trust& trust) {
    trust.roots.clear();
    trust.unsigned_registries = {world.server.url()};
  });
  locked.offline = true;
  CHECK(create(locked) == "");
}

TEST_CASE("vouch: a cache that may only be read takes the fallback, whatever was signed since") {
  if (::geteuid() != 0) return;  // only root may become somebody else
  const ReadableByAll made;
  World world;
  const Environment sm("KILN_OVERRIDE_SM", "8.0");
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.4");
  world.index =
      world.published.publish({cpu_draft(sample_library()), gpu_draft(sample_library("gpu"))});
  world.metadata.add("sample", 1, world.index);
  world.metadata.publish();
  Request request = world.request();
  request.device = Device::cuda(0);
  request.fallback = {Fallback::cpu()};
  install("sample", request);
  world.metadata.publish();
  fs::permissions(world.scratch.path(), fs::perms(0755));
  fs::permissions(world.scratch / "trust.json", fs::perms(0644));
  constexpr uid_t kNobody = 65534;
  CHECK(as_user(kNobody, kNobody, 022, [&] { install("sample", request); }) == 0);
}

TEST_CASE("vouch: of two bundles the newer state decides, whichever came last") {
  World world;
  const auto bundle = [&](const std::string& name) {
    const fs::path file = world.scratch / name;
    create_bundle({{.name = "sample", .request = world.fresh(), .all_variants = true}}, file);
    return file.string();
  };
  const std::string monday = bundle("monday.tar");
  world.metadata.publish();
  const std::string tuesday = bundle("tuesday.tar");
  std::string told;
  Request carried = world.fresh();
  carried.cache = world.scratch / "there";
  carried.on_event = [&](const Event& event) { told += event.note + "\n"; };
  carried.from = tuesday;
  install("sample", carried);
  CHECK(told.find("older") == std::string::npos);
  carried.from = monday;
  CHECK(install("sample", carried).choice.version.descriptor == world.index);
  CHECK_CONTAINS(told, "version 1 is older than 2, which was seen before and decides");
  // What was taken back by then is not had by the older bundle.
  world.metadata.yank("sample", 1, "it computes nonsense");
  world.metadata.publish();
  carried.from = world.published.root().string();
  CHECK(world.refused(carried).code() == ErrorCode::kTrust);
  carried.from = monday;
  CHECK_CONTAINS(world.refused(carried).what(), "it computes nonsense");
}

TEST_CASE("vouch: a bundle says whose it is") {
  World world;
  const fs::path file = world.scratch / "bundle.tar";
  create_bundle({{.name = "sample", .request = world.request(), .all_variants = true}}, file);
  const std::vector<BundledKernel> inside = bundle_contents(file);
  REQUIRE(inside.size() == 1);
  CHECK(inside.front().registry == world.server.url());
  CHECK(inside.front().is_signed);
}

}  // namespace
}  // namespace kiln::test
