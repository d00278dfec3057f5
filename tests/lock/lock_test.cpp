// SPDX-License-Identifier: Apache-2.0
//
// Locking from end to end: a lock file made from a registry, and installs that are held to it.
#include "install/lock.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <stop_token>
#include <thread>

#include "documents/manifest.hpp"
#include "install/install.hpp"
#include "kiln/kiln.hpp"
#include "sample_setting.hpp"
#include "server.hpp"
#include "store/cache.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

/// A registry with sample@1 for the CPU and for a Hopper, its server, and a lock file of it.
struct LockSetting : SampleSetting {
  Server server{published.root()};
  fs::path file = scratch / "kiln.lock";

  Request request() const {
    return {.version = 1, .registry = server.url(), .cache = scratch / "cache"};
  }
  Request locked() const { return {.cache = scratch / "cache", .lock = file}; }

  Lockfile lock() {
    std::vector<std::string> unread;
    Lockfile made{{"sample", lock_kernel("sample", request(), unread)}};
    CHECK(unread.empty());
    return made;
  }
  void write() { write_lockfile(file, lock()); }
  /// Rewrites the lock file after a change.
  void change(const std::function<void(LockedKernel&)>& edit) {
    Lockfile made = lock();
    edit(made.at("sample"));
    write_lockfile(file, made);
  }
  /// Publishes sample@1 anew with one variant more.
  Descriptor grow() {
    drafts.push_back(cpu_draft(sample_library(), "sample", 1, "cpu-extra"));
    return published.publish(drafts);
  }
  Error refused(const Request& request) const {
    return error_of([&] { install("sample", request); });
  }
};

/// A lock file with a kernel of this name more.
LockfileEdit adding(const std::string& name, const LockedKernel& kernel) {
  return {.change = [=](Lockfile lock) {
    lock[name] = kernel;
    return lock;
  }};
}

TEST_CASE("lock: of several that add to a lock file at once none loses its entry") {
  LockSetting setting;
  const LockedKernel kernel = setting.lock().at("sample");
  constexpr int kWriters = 6;
  std::vector<std::thread> writers;
  for (int i = 0; i < kWriters; ++i) {
    writers.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        const std::string name = "k" + std::to_string(i) + "-" + std::to_string(round);
        update_lockfile(setting.file, adding(name, kernel));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(read_lockfile(setting.file).size() == kWriters * 5);
  const fs::directory_iterator files(setting.scratch / ".");
  CHECK(std::distance(files, {}) == 3);  // the lock file, the registry and the cache
}

TEST_CASE("lock: who waits for another one is told, and can be stopped") {
  LockSetting setting;
  const LockedKernel kernel = setting.lock().at("sample");
  std::stop_source stop;
  LockfileEdit inner = adding("b", kernel);
  inner.waiting.stop = stop.get_token();
  inner.waiting.tell = [&](const std::string& note) {
    CHECK(note == "waiting for process " + std::to_string(::getpid()) + ", which holds " +
                      setting.file.string());
    stop.request_stop();
  };
  LockfileEdit outer = adding("a", kernel);
  Error refused(ErrorCode::kInternal, "none");
  outer.change = [&, change = outer.change](const Lockfile& before) {
    refused = error_of([&] { update_lockfile(setting.file, inner); });
    return change(before);
  };
  CHECK(update_lockfile(setting.file, outer).changed);
  CHECK(refused.code() == ErrorCode::kCancelled);
  CHECK(read_lockfile(setting.file).size() == 1);
}

TEST_CASE("lock: a lock file that is a symbolic link stays one; the file that it names changes") {
  LockSetting setting;
  const Lockfile lock = setting.lock();
  fs::create_directory(setting.scratch / "shared");
  for (const char* target : {"shared/kiln.lock", "shared/none-yet.lock"}) {
    CAPTURE(target);
    fs::remove(setting.file);
    fs::create_symlink(target, setting.file);
    if (std::string_view(target) == "shared/kiln.lock") {
      write_lockfile(setting.scratch / target, {});
    }
    write_lockfile(setting.file, lock);
    CHECK(fs::is_symlink(setting.file));
    CHECK(read_lockfile(setting.scratch / target) == lock);
  }
  fs::remove(setting.file);
  fs::create_symlink("kiln.lock", setting.file);
  CHECK(error_of([&] { write_lockfile(setting.file, lock); }).code() == ErrorCode::kUsage);
}

TEST_CASE("lock: a damaged lock file says how to replace it, and is replaced so") {
  LockSetting setting;
  write_file(setting.file, "{\n");
  const LockedKernel kernel = setting.lock().at("sample");
  LockfileEdit edit = adding("sample", kernel);
  CHECK_CONTAINS(error_of([&] { update_lockfile(setting.file, edit); }).what(),
                 "'kiln lock --force NAME@VERSION --lock " + setting.file.string() + "'");
  edit.replace = true;
  CHECK(update_lockfile(setting.file, edit).changed);
  CHECK(read_lockfile(setting.file).size() == 1);
}

TEST_CASE("lock: all variants with all digests, on a machine that runs one of them") {
  LockSetting setting;
  const Lockfile lock = setting.lock();
  const LockedKernel& kernel = lock.at("sample");
  CHECK(kernel.version == 1);
  CHECK(kernel.registry == setting.server.url());
  CHECK(kernel.index == setting.index);
  REQUIRE(kernel.variants.size() == 2);
  for (const Draft& draft : setting.published.drafts()) {
    const LockedVariant& variant = kernel.variants.at(draft.variant.id);
    CHECK(variant.manifest.digest == Digest::of(draft.manifest_bytes));
    CHECK(variant.config.digest == Digest::of(draft.config_bytes));
    CHECK(variant.layer.digest == Digest::of(draft.layer));
    CHECK(variant.library == draft.config.library);
    for (const ArchiveFile& each : draft.config.files) {
      if (each.path == draft.config.library) CHECK(variant.library_digest == each.digest);
    }
    CHECK_FALSE(variant.library_digest.empty());
  }
  CHECK(setting.server.count("blobs/") == 2);  // configs; no layer
  fs::remove_all(setting.request().cache);
  CHECK(serialize_lockfile(setting.lock()) == serialize_lockfile(lock));
}

TEST_CASE("lock: an install takes version, registry and digests from the lock, and asks no tag") {
  LockSetting setting;
  setting.write();
  setting.grow();
  fs::remove_all(setting.request().cache);
  const std::size_t before = setting.server.asked().size();
  const Installed installed = install("sample", setting.locked());
  CHECK(installed.choice.version.descriptor == setting.index);  // not the grown one
  CHECK(installed.choice.registry == setting.server.url());
  CHECK(installed.choice.version.index.version == 1);
  const std::vector<std::string> asked = setting.server.asked();
  CHECK(asked.at(before) == "/v2/sample/manifests/" + setting.index.digest.str());
  CHECK(setting.server.count("manifests/1") == 1);  // by lock() alone
  const std::vector<Cache::KeptLockFile> roots = Cache(setting.locked().cache).kept_lock_files();
  REQUIRE(roots.size() == 1);
  CHECK(roots.front().lock_file == setting.file);

  // Frozen: the same without any network, and by version without the lock.
  Request frozen = setting.locked();
  frozen.offline = true;
  const Kernel kernel = get_kernel("sample", frozen);
  CHECK(kernel.version() == 1);
  Request plain = setting.request();
  plain.offline = true;
  CHECK(install("sample", plain).package.library == kernel.library());
}

TEST_CASE("lock: KILN_LOCK holds every request, and names one kernel to another one's memory") {
  LockSetting setting;
  setting.write();
  const Environment lock("KILN_LOCK", setting.file.string());
  const Kernel kernel = get_kernel("sample", {.cache = setting.request().cache});
  CHECK(kernel.version() == 1);
  CHECK(error_of([&] {
          get_kernel("sample", {.version = 2, .cache = setting.request().cache});
        }).code() == ErrorCode::kLock);
}

TEST_CASE("lock: what the lock and the request do not agree on names both sides") {
  LockSetting setting;
  setting.write();
  {
    Request request = setting.locked();
    request.version = 2;
    const Error error = setting.refused(request);
    CHECK(error.code() == ErrorCode::kLock);
    CHECK_CONTAINS(error.what(), "lock sample: version 2 is asked for");
    CHECK_CONTAINS(error.what(), setting.file.string() + " has version 1");
    CHECK_CONTAINS(error.what(), "Run 'kiln lock sample@2 --lock " + setting.file.string() + "'");
  }
  for (const bool by_environment : {false, true}) {
    CAPTURE(by_environment);
    Request request = setting.locked();
    const std::string other = setting.published.root().string();
    const Environment registry("KILN_REGISTRY", by_environment ? other : "");
    if (!by_environment) request.registry = other;
    const Error error = setting.refused(request);
    CHECK(error.code() == ErrorCode::kLock);
    CHECK_CONTAINS(error.what(), "lock sample@1: " + other + " is to be asked");
    CHECK_CONTAINS(error.what(), "has it from " + setting.server.url());
    CHECK_CONTAINS(error.what(), "--from");
  }
  {
    const Error error = error_of([&] { install("another", setting.locked()); });
    CHECK(error.code() == ErrorCode::kLock);
    CHECK_CONTAINS(error.what(), "does not have it, it has sample@1");
    CHECK_CONTAINS(error.what(),
                   "Run 'kiln lock another@VERSION --lock " + setting.file.string() + "'");
  }
  {
    fs::remove(setting.file);
    const Error error = setting.refused(setting.locked());
    CHECK(error.code() == ErrorCode::kLock);
    CHECK_CONTAINS(error.what(), "read lock file " + setting.file.string());
    CHECK_CONTAINS(error.what(),
                   "Run 'kiln lock NAME@VERSION --lock " + setting.file.string() + "'");
  }
  {
    write_file(setting.file, "{}");
    CHECK(setting.refused(setting.locked()).code() == ErrorCode::kLock);
    write_file(setting.file, std::string(5u << 20, ' '));
    const Error error = setting.refused(setting.locked());
    CHECK(error.code() == ErrorCode::kLock);
    CHECK_CONTAINS(error.what(), "more than");
  }
}

TEST_CASE("lock: every digest in it is held against what is there, before anything is unpacked") {
  const Digest other = Digest::of("something else");
  using Edit = std::function<void(LockedVariant&)>;
  const std::vector<std::pair<std::string, Edit>> rows = {
      {"manifest", [&](LockedVariant& each) { each.manifest.digest = other; }},
      {"manifest", [&](LockedVariant& each) { each.manifest.size += 1; }},
      {"config", [&](LockedVariant& each) { each.config.digest = other; }},
      {"layer", [&](LockedVariant& each) { each.layer.digest = other; }},
      {"layer", [&](LockedVariant& each) { each.layer.size += 1; }},
      {"library", [&](LockedVariant& each) { each.library_digest = other; }},
      {"library", [&](LockedVariant& each) { each.library = "lib/other.so"; }},
  };
  for (const bool warm : {false, true}) {
    for (const auto& row : rows) {
      CAPTURE(row.first);
      CAPTURE(warm);
      LockSetting setting;
      setting.change([&](LockedKernel& kernel) { row.second(kernel.variants.at("cpu-base")); });
      if (warm) install("sample", setting.request());
      const int loaded = loaded_libraries();
      const Error error = error_of([&] { get_kernel("sample", setting.locked()); });
      CHECK(error.code() == ErrorCode::kLock);
      CHECK_CONTAINS(error.what(), "lock sample@1 cpu-base: " + row.first + " is ");
      CHECK_CONTAINS(error.what(), setting.file.string() + " says ");
      CHECK_CONTAINS(error.what(), "changed by hand");
      CHECK(loaded_libraries() == loaded);
      CHECK(fs::exists(setting.locked().cache / "unpacked") == warm);
    }
  }
}

TEST_CASE("lock: a variant that is not in the lock is not taken") {
  LockSetting setting;
  setting.change([](LockedKernel& kernel) { kernel.variants.erase("cpu-base"); });
  const Error error = setting.refused(setting.locked());
  CHECK(error.code() == ErrorCode::kLock);
  CHECK_CONTAINS(error.what(), "does not have this variant");
}

TEST_CASE("lock: an index that the registry does not have names both, and a wrong one is refused") {
  LockSetting setting;
  setting.change([](LockedKernel& kernel) { kernel.index.digest = Digest::of("never"); });
  for (const std::string& from : {std::string(), setting.published.root().string()}) {
    Request request = setting.locked();
    request.from = from;
    const Error error = setting.refused(request);
    CHECK(error.code() == ErrorCode::kLock);
    CHECK_CONTAINS(error.what(), "names index " + Digest::of("never").str());
    CHECK_CONTAINS(error.what(), "Run 'kiln lock --lock " + setting.file.string() + "'");
  }
  // The registry answers with other bytes than the digest that was asked for.
  setting.write();
  fs::remove_all(setting.locked().cache);
  damage(setting.published.blob("sample", setting.index.digest));
  CHECK(setting.refused(setting.locked()).code() == ErrorCode::kIntegrity);
}

TEST_CASE("lock: nothing fits, and the lock is named as the reason that nothing newer was asked") {
  LockSetting setting;
  setting.write();
  const Environment turing("KILN_OVERRIDE_SM", "7.5");
  const Environment driver("KILN_OVERRIDE_CUDA", "12.4");
  const std::size_t asked = setting.server.asked().size();
  const Error error = setting.refused(setting.locked());
  CHECK(error.code() == ErrorCode::kNoVariant);
  CHECK_CONTAINS(error.what(), setting.file.string() + " pins this index; 'kiln lock --lock ");
  CHECK(setting.server.asked().size() == asked + 1);  // the index
}

TEST_CASE("lock: one made without a GPU holds on a machine with one") {
  LockSetting setting;
  setting.write();
  const Environment hopper("KILN_OVERRIDE_SM", "9.0");
  const Environment driver("KILN_OVERRIDE_CUDA", "12.4");
  const Installed installed = install("sample", setting.locked());
  CHECK(installed.package.variant.id == setting.drafts.at(1).variant.id);
}

TEST_CASE("lock: what a registry gave since is not forgotten by an install of an older lock") {
  LockSetting setting;
  setting.write();
  const Descriptor grown = setting.grow();
  Request refresh = setting.request();
  refresh.refresh = true;
  install("sample", refresh);
  const Cache cache(setting.request().cache);
  REQUIRE(cache.read_ref(setting.server.url(), "sample", 1)->index == grown);
  install("sample", setting.locked());
  CHECK(cache.read_ref(setting.server.url(), "sample", 1)->index == grown);
}

TEST_CASE("lock: variants that only a newer Kiln can read are named and left out") {
  LockSetting setting;
  Index index = parse_index(read_file(setting.published.blob("sample", setting.index.digest)), "i");
  index.variants.at(1).requires_.min_loader = "99.0.0";
  setting.published.publish_index(index);
  std::vector<std::string> unread;
  const LockedKernel kernel = lock_kernel("sample", setting.request(), unread);
  CHECK(unread == std::vector<std::string>{index.variants.at(1).id});
  CHECK(kernel.variants.size() == 1);
}

TEST_CASE("lock: a lock file that cannot be written leaves the old one") {
  LockSetting setting;
  setting.write();
  const std::string before = read_file(setting.file);
  const Error error =
      error_of([&] { write_lockfile(setting.scratch / "no/such/kiln.lock", setting.lock()); });
  CHECK(error.code() == ErrorCode::kNotFound);
  CHECK(read_file(setting.file) == before);
}

TEST_CASE("from: other places give the bytes, the registry's name stays") {
  LockSetting setting;
  Request request{.version = 1,
                  .registry = "https://kernels.example",
                  .cache = setting.scratch / "cache",
                  .offline = true};
  request.from = setting.published.root().string();
  const Installed installed = install("sample", request);
  CHECK(installed.choice.registry == "https://kernels.example");
  request.from.clear();
  CHECK(install("sample", request).package.library == installed.package.library);
  // A mirror is the network.
  fs::remove_all(request.cache);
  request.from = setting.server.url();
  CHECK(setting.refused(request).code() == ErrorCode::kOffline);
  request.offline = false;
  CHECK(install("sample", request).choice.registry == "https://kernels.example");
}

}  // namespace
}  // namespace kiln::test
