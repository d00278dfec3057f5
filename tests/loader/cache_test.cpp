// SPDX-License-Identifier: Apache-2.0
//
// Cache: where it may be, what it refuses, and what it looks like after everything that can happen.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "install/install.hpp"
#include "kiln/kiln.hpp"
#include "loader_paths.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "store/installed.hpp"
#include "store/repair.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;

TEST_CASE("cache: the folder comes from KILN_CACHE, XDG_CACHE_HOME or HOME, in this order") {
  const Environment home("HOME", "/home/someone");
  {
    const Environment xdg("XDG_CACHE_HOME", "/xdg");
    const Environment own("KILN_CACHE", "/own");
    CHECK(Cache::default_root() == "/own");
  }
  const Environment own("KILN_CACHE", std::nullopt);
  {
    const Environment xdg("XDG_CACHE_HOME", "/xdg");
    CHECK(Cache::default_root() == "/xdg/kiln");
  }
  const Environment xdg("XDG_CACHE_HOME", std::nullopt);
  CHECK(Cache::default_root() == "/home/someone/.cache/kiln");
  const Environment none("HOME", std::nullopt);
  const Error error = error_of([] { Cache(); });
  CHECK(error.code() == ErrorCode::kCache);
  CHECK_CONTAINS(error.what(), "Set KILN_CACHE");
}

TEST_CASE("cache: a folder that others can change is refused with the way out") {
  Scratch scratch;
  struct Case {
    const char* name;
    const char* text;
  };
  fs::create_directory(scratch / "open");
  REQUIRE(::chmod((scratch / "open").c_str(), 0777) == 0);
  write_file(scratch / "file", "x");
  for (const Case& each : {Case{"open", "chmod o-w"}, Case{"file", "not a folder"}}) {
    const Error error = error_of([&] { Cache(scratch / each.name); });
    CHECK(error.code() == ErrorCode::kCache);
    CHECK_CONTAINS(error.what(), each.text);
  }
  CHECK(error_of([] { Cache("relative/path"); }).code() == ErrorCode::kCache);
  fs::create_directory(scratch / "foreign");
  const bool given = ::geteuid() == 0;  // only root may
  if (given && ::chown((scratch / "foreign").c_str(), kNobody, kNobody) == 0) {
    const Error error = error_of([&] { Cache(scratch / "foreign"); });
    CHECK(error.code() == ErrorCode::kCache);
    CHECK_CONTAINS(error.what(), "belongs to user 65534");
  }
}

TEST_CASE("cache: what an install leaves") {
  Scratch scratch;
  Published published(scratch / "registry");
  const Descriptor index = published.publish({cpu_draft(sample_library())});
  const Installed installed = install("sample", {.version = 1,
                                                 .device = Device::cpu(),
                                                 .registry = published.root().string(),
                                                 .cache = scratch / "cache"});
  const Cache cache(scratch / "cache");
  CHECK_CONTAINS(read_file(cache.root() / "CACHEDIR.TAG"),
                 "Signature: 8a477f597d28d172789f06886806bc55");
  CHECK(fs::is_empty(cache.root() / "ingest"));
  for (const auto& entry : fs::directory_iterator(cache.root() / "blobs" / "sha256")) {
    struct stat status {};
    REQUIRE(::stat(entry.path().c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0444);
    CHECK(Digest::of(read_file(entry.path())).hex() == entry.path().filename());
  }
  const std::vector<Ref> refs = cache.refs();
  REQUIRE(refs.size() == 1);
  CHECK(refs[0].registry == published.root());
  CHECK(refs[0].name == "sample");
  CHECK(refs[0].version == 1);
  CHECK(refs[0].index == index);
  const std::vector<InstalledVariant> all = list_installed(cache);
  REQUIRE(all.size() == 1);
  CHECK(all[0].library == installed.package.library);
  CHECK(all[0].bytes == fs::file_size(installed.package.library) + 11);
  for (const CheckedFile& file : verify_installed(cache)) CHECK(file.problem == "");
}

TEST_CASE("cache: a cached index gives what it carries of a variant that is not there") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library()), gpu_draft(sample_library())});
  Index index{"sample", 1, {}, {}};
  for (const Draft& draft : published.drafts()) {
    index.requires_ = draft.variant.requires_;
    index.variants.push_back(draft.variant);
    index.variants.back().carried = {draft.manifest_bytes, draft.config_bytes};
  }
  published.publish_index(index);
  Request request{.version = 1,
                  .device = Device::cpu(),
                  .registry = published.root().string(),
                  .cache = scratch / "cache"};
  const Installed first = install("sample", request);
  const std::vector<Digest> documents = {first.package.variant.manifest.digest,
                                         first.package.manifest.config.digest};
  request.offline = true;
  Cache cache(scratch / "cache");
  for (const Digest& gone : documents) {
    cache.drop_blob(gone);
    CHECK(install("sample", request).package.library == first.package.library);
    CHECK(Digest::of(read_file(cache.blob_path(gone))) == gone);
  }

  // Another text in the index is no document of the variant, whoever put it there.
  index.variants[0].carried.config += " ";
  published.publish_index(index);
  request.cache = scratch / "other";
  request.offline = false;
  const Error error = error_of([&] { install("sample", request); });
  CHECK(error.code() == ErrorCode::kIntegrity);
  CHECK_CONTAINS(error.what(), "the index, which carries it");
}

TEST_CASE("cache: read-only and warm is enough; read-only and cold is an error with a way out") {
  const ReadableByAll made;
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Request request{.version = 1,
                        .device = Device::cpu(),
                        .registry = published.root().string(),
                        .cache = scratch / "cache"};
  // The tests' settings may lie where only their owner reads.
  fs::copy_file(paths::kSettings, scratch / "config.json");
  const Environment settings("KILN_CONFIG", (scratch / "config.json").string());
  install("sample", request);
  fs::create_directory(scratch / "cold");
  for (const auto& entry : fs::recursive_directory_iterator(scratch / "cache")) {
    fs::permissions(entry.path(), entry.is_directory() ? fs::perms(0555) : fs::perms(0444));
  }
  fs::permissions(scratch / "cache", fs::perms(0555));
  fs::permissions(scratch / "cold", fs::perms(0555));
  fs::permissions(scratch / "config.json", fs::perms(0644));  // a copy has its source's mode
  fs::permissions(scratch.path(), fs::perms(0755));
  // In a child, as a user whom the modes bind: they do not bind root.
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    try {
      if (::geteuid() == 0) {  // the files stay root's, which every user's Kiln accepts
        if (::setegid(kNobody) != 0 || ::seteuid(kNobody) != 0) ::_exit(10);
      }
      if (get_kernel("sample", request).version() != 1) code |= 1;
    } catch (const Error&) {
      code |= 2;
    }
    try {
      Request cold = request;
      cold.cache = scratch / "cold";
      get_kernel("sample", cold);
      code |= 4;
    } catch (const Error& error) {
      const bool helpful = std::string(error.what()).find("KILN_CACHE") != std::string::npos;
      if (error.code() != ErrorCode::kCache || !helpful) code |= 8;
    }
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("cache: a disk that takes no more is an error, and leaves nothing half-written") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Request request{.version = 1,
                        .device = Device::cpu(),
                        .registry = published.root().string(),
                        .cache = scratch / "cache"};
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 1;
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{2048, 2048};  // documents fit, the layer does not
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      install("sample", request);
    } catch (const Error& error) {
      const bool helpful = std::string(error.what()).find("ulimit -f") != std::string::npos;
      code = error.code() == ErrorCode::kCache && helpful ? 0 : 2;
    }
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(fs::is_empty(scratch / "cache" / "ingest"));
  CHECK(Cache(scratch / "cache").refs().empty());
  CHECK(install("sample", request).traffic.requests > 0);
}

TEST_CASE("cache: a ref that does not parse is refused, reported, and written anew by a refresh") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  Request request{.version = 1,
                  .device = Device::cpu(),
                  .registry = published.root().string(),
                  .cache = scratch / "cache"};
  install("sample", request);
  const Cache cache(scratch / "cache");
  const fs::path ref = cache.ref_path(published.root().string(), "sample", 1);
  const std::string good = read_file(ref);
  struct Case {
    std::string text;
    ErrorCode code;
  };
  const std::vector<Case> cases{
      {"", ErrorCode::kIntegrity},
      {"{}", ErrorCode::kIntegrity},
      {good.substr(0, good.size() / 2), ErrorCode::kIntegrity},
      {std::string(100000, ' '), ErrorCode::kIntegrity},
      {R"({"schema":"kiln.ref/2"})", ErrorCode::kUpgrade},
  };
  for (const Case& each : cases) {
    CAPTURE(each.text.substr(0, 40));
    fs::permissions(ref, fs::perms(0644));
    write_file(ref, each.text);
    const Error error = error_of([&] { install("sample", request); });
    CHECK(error.code() == each.code);
    CHECK_CONTAINS(error.what(), ref.string());
    CHECK(list_installed(cache).empty());
    const std::vector<CheckedFile> checked = verify_installed(cache);
    REQUIRE(checked.size() == 5);  // the ref, and the four blobs that no ref names now
    CHECK(checked[0].file == ref);
    CHECK(checked[0].problem != "");
  }
  fs::permissions(ref, fs::perms(0644));
  write_file(ref, "damaged");
  request.refresh = true;
  install("sample", request);
  CHECK(read_file(ref) == good);
}

TEST_CASE("cache: a folder that has a version in other bytes than the cache is an error") {
  const Scratch scratch;
  Published published(scratch / "registry");
  const Request request{.version = 1,
                        .device = Device::cpu(),
                        .registry = published.root().string(),
                        .cache = scratch / "cache"};
  const Draft first = cpu_draft(sample_library());
  published.publish({first});
  const Digest index = install("sample", request).choice.version.descriptor.digest;

  // The registry is made anew, with an edited kernel under the same version.
  fs::remove_all(published.root());
  published.publish({cpu_draft(sample_library("version2"))});
  for (const bool refresh : {false, true}) {
    Request again = request;
    again.refresh = refresh;
    const Error error = error_of([&] { install("sample", again); });
    CHECK(error.code() == ErrorCode::kIntegrity);
    CHECK_CONTAINS(error.what(), "a published version never changes, nothing was loaded");
    CHECK_CONTAINS(error.what(), "if you rebuilt it yourself, remove " + request.cache.string());
  }
  Request offline = request;
  offline.offline = true;  // asks nobody
  CHECK(install("sample", offline).choice.version.descriptor.digest == index);

  // The same bytes with more beside them, without the version, and no registry at all: as it was.
  fs::remove_all(published.root());
  published.publish({first, gpu_draft(sample_library())});
  CHECK(install("sample", request).choice.version.descriptor.digest == index);
  fs::remove_all(published.root());
  published.publish({cpu_draft(sample_library(), "sample", 2)});
  CHECK(install("sample", request).choice.version.descriptor.digest == index);
  fs::remove_all(published.root());
  CHECK(install("sample", request).choice.version.descriptor.digest == index);
}

/// As `kiln build` leaves a variant.
void write_build_output(const fs::path& folder, Draft draft) {
  const Scratch scratch;
  Published(scratch.path()).add(draft);
  fs::create_directories(folder);
  write_file(folder / "descriptor.json", dump_json(variant_descriptor(draft.variant)));
  write_file(folder / "manifest.json", draft.manifest_bytes);
  write_file(folder / "config.json", draft.config_bytes);
  write_file(folder / "layer.tar.zst", draft.layer);
}

TEST_CASE("cache: what was built last is what is installed, and no version of it is remembered") {
  const Scratch scratch;
  const fs::path built = scratch / "kernels" / "sample";
  Request request{.version = 1,
                  .device = Device::cpu(),
                  .registry = (scratch / "registry").string(),
                  .cache = scratch / "cache"};
  for (const fs::path& from : {built, built / "cpu-base", built.parent_path()}) {
    for (const char* library : {"plain", "version2"}) {
      CAPTURE(from.string());
      request.from = from.string();
      const Draft draft = cpu_draft(sample_library(library));
      write_build_output(built / "cpu-base", draft);
      const Installed installed = install("sample", request);
      CHECK(read_file(installed.package.library) == draft.entries.back().content);
      CHECK(installed.choice.registry == (from == built / "cpu-base" ? from : built).string());
      CHECK_FALSE(fs::exists(request.cache / "refs"));
    }
  }
  request.version = 2;
  CHECK_CONTAINS(error_of([&] { install("sample", request); }).what(), "published: 1.");
  request.version = 1;
  request.from = (built / "cpu-base").string();
  CHECK_CONTAINS(error_of([&] { install("other", request); }).what(), "it is a build of sample");
  {
    const Environment signs("KILN_UNSIGNED", std::nullopt);
    const Error error = error_of([&] { install("sample", request); });
    CHECK(error.code() == ErrorCode::kTrust);
    CHECK_CONTAINS(error.what(), "'kiln trust add " + request.from + " --unsigned'");
  }
  request.from = built.string();
  write_file(built / "cpu-base" / "layer.tar.zst", "damaged");
  fs::remove_all(request.cache);
  const Error error = error_of([&] { install("sample", request); });
  CHECK(error.code() == ErrorCode::kIntegrity);
  CHECK_CONTAINS(error.what(), (built / "cpu-base" / "layer.tar.zst").string());
}

TEST_CASE("cache: two registries do not share refs, and share blobs") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  fs::copy(scratch / "registry", scratch / "mirror", fs::copy_options::recursive);
  Request request{.version = 1,
                  .device = Device::cpu(),
                  .registry = published.root().string(),
                  .cache = scratch / "cache"};
  const Installed first = install("sample", request);
  request.registry = (scratch / "mirror").string();
  const Installed second = install("sample", request);
  CHECK(first.package.library == second.package.library);
  CHECK(second.traffic.requests == 2);  // the layout's list and the index; the rest is here
  CHECK(Cache(scratch / "cache").refs().size() == 2);
}

TEST_CASE("cache: an install that was cut short anywhere is completed by the next one") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Request request{.version = 1,
                        .device = Device::cpu(),
                        .registry = published.root().string(),
                        .cache = scratch / "cache"};
  const Installed whole = install("sample", request);
  std::vector<fs::path> removable{
      whole.package.folder,
      Cache(scratch / "cache").ref_path(published.root().string(), "sample", 1)};
  for (const auto& entry : fs::directory_iterator(scratch / "cache" / "blobs" / "sha256")) {
    removable.push_back(entry.path());
  }
  CHECK(removable.size() == 6);
  for (const fs::path& path : removable) {
    CAPTURE(path.string());
    fs::remove_all(path);
    write_file(scratch / "cache/ingest/leftover.123", "half");
    CHECK(install("sample", request).package.library == whole.package.library);
    CHECK(fs::exists(whole.package.library));
    for (const CheckedFile& file : verify_installed(Cache(scratch / "cache"))) {
      CHECK(file.problem == "");
    }
  }
}

}  // namespace
}  // namespace kiln::test
