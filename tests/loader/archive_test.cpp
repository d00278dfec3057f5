// SPDX-License-Identifier: Apache-2.0
//
// Archives that nobody who means well makes: each is refused before anything of it can be loaded,
// and leaves nothing behind, inside or outside of the cache.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <random>
#include <stdexcept>

#include "base/read_ahead.hpp"
#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "store/unpack.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kDirectory = 0040000;
constexpr unsigned kSymlink = 0120000;
constexpr unsigned kCharacterDevice = 0020000;
constexpr unsigned kFifo = 0010000;
constexpr unsigned kHardLink = 0;

struct Hostile {
  const char* name;
  std::function<void(Draft&)> spoil;
  const char* text;
};

void add_entry(Draft& draft, Entry entry) {
  draft.layer.clear();
  draft.entries.push_back(std::move(entry));
  draft.layer = make_zstd(make_tar(draft.entries));
}

std::vector<Hostile> cases() {
  const auto list = [](Draft& draft) {  // the config keeps what the honest archive holds
    for (const Entry& entry : draft.entries) {
      draft.config.files.push_back({entry.path, Digest::of(entry.content), entry.content.size()});
    }
  };
  const auto with = [list](Entry entry) {
    return [list, entry](Draft& draft) {
      list(draft);
      add_entry(draft, entry);
    };
  };
  // In place of the honest LICENSE, so that the path itself is one that the config lists.
  const auto instead = [list](Entry entry) {
    return [list, entry](Draft& draft) {
      list(draft);
      draft.entries[0] = entry;
      draft.layer = make_zstd(make_tar(draft.entries));
    };
  };
  const auto bytes = [list](std::function<std::string(const std::string& tar)> make) {
    return [list, make](Draft& draft) {
      list(draft);
      draft.layer = make(make_tar(draft.entries));
    };
  };
  const std::string license = "Apache-2.0\n";
  return {
      {"path traversal", with({"../escaped", "x"}),
       R"("../escaped", which its config does not list)"},
      {"traversal inside", with({"lib/../../escaped", "x"}), "which its config does not list"},
      {"absolute path", with({"/tmp/kiln-escaped", "x"}), "which its config does not list"},
      {"backslash path", with({"C:\\x", "x"}), "which its config does not list"},
      {"extra file", with({"EXTRA", "x"}), R"("EXTRA", which its config does not list)"},
      {"extra folder", with({"lib", "", kDirectory}), "which its config does not list"},
      {"duplicate", with({"LICENSE", license}), "holds 'LICENSE' twice"},
      {"symlink", instead({"LICENSE", "", kSymlink, "/etc/passwd"}), "not a regular file"},
      {"hard link", instead({"LICENSE", "", kHardLink, "lib/libsample.so"}), "is a hard link"},
      {"device", instead({"LICENSE", "", kCharacterDevice}), "not a regular file"},
      {"fifo", instead({"LICENSE", "", kFifo}), "not a regular file"},
      {"folder", instead({"LICENSE", "", kDirectory}), "which its config does not list"},
      {"larger file", instead({"LICENSE", license + "more"}), "has 15 bytes, its config says 11"},
      {"smaller file", instead({"LICENSE", "x"}), "has 1 bytes, its config says 11"},
      {"other content", instead({"LICENSE", "Apache-9.9\n"}), "digest is "},
      {"missing file",
       [list](Draft& draft) {
         list(draft);
         draft.entries.erase(draft.entries.begin());
         draft.layer = make_zstd(make_tar(draft.entries));
       },
       "'LICENSE' is missing"},
      {"empty archive", bytes([](const std::string&) { return make_zstd(make_tar({})); }),
       "is missing"},
      {"no compression", bytes([](const std::string& tar) { return tar; }), ""},
      {"nested zstd", bytes([](const std::string& tar) { return make_zstd(make_zstd(tar)); }),
       "2 compression filters"},
      {"no archive", bytes([](const std::string&) { return make_zstd("not a tar"); }), ""},
      {"truncated zstd", bytes([](const std::string& tar) {
         const std::string layer = make_zstd(tar);
         return layer.substr(0, layer.size() - 5);
       }),
       ""},
      {"truncated tar",
       bytes([](const std::string& tar) { return make_zstd(tar.substr(0, tar.size() / 2)); }), ""},
      {"garbage after zstd",
       bytes([](const std::string& tar) { return make_zstd(tar) + "garbage"; }), ""},
      {"garbage after tar",
       bytes([](const std::string& tar) { return make_zstd(tar + "garbage"); }),
       "goes on after the archive's end"},
      {"second tar", bytes([](const std::string& tar) {
         return make_zstd(tar + make_tar({{"LICENSE", "two"}}));
       }),
       "goes on after the archive's end"},
      {"second zstd frame", bytes([](const std::string& tar) {
         return make_zstd(tar) + make_zstd(make_tar({{"LICENSE", "two"}}));
       }),
       "goes on after the archive's end"},
      {"a bomb behind the end",
       bytes([](const std::string& tar) { return make_zstd(tar + std::string(64u << 20, '\0')); }),
       "decompresses to more than"},
      {"unpacked size of the manifest",
       [list](Draft& draft) {
         list(draft);
         draft.unpacked_size = 5;
       },
       "its manifest says 5 bytes"},
  };
}

TEST_CASE("unpack: hostile archives are refused and leave nothing behind") {
  for (const Hostile& each : cases()) {
    CAPTURE(each.name);
    Scratch scratch;
    Published published(scratch / "registry");
    Draft draft = cpu_draft(sample_library());
    each.spoil(draft);
    published.publish({draft});
    const int before = loaded_libraries();
    const Error error = error_of([&] {
      get_kernel("sample",
                 {.version = 1, .registry = published.root().string(), .cache = scratch / "cache"});
    });
    CHECK(error.code() == ErrorCode::kIntegrity);
    CHECK_CONTAINS(error.what(), each.text);
    CHECK_CONTAINS(error.what(), "sample@1 cpu-base");
    CHECK(loaded_libraries() == before);
    CHECK(fs::is_empty(scratch / "cache" / "unpacked"));
    CHECK_FALSE(fs::exists(scratch / "escaped"));
    CHECK_FALSE(fs::exists(scratch / "cache" / "escaped"));
    CHECK_FALSE(fs::exists(scratch / "cache" / "unpacked" / "escaped"));
    CHECK_FALSE(fs::exists("/tmp/kiln-escaped"));
  }
}

TEST_CASE("unpack: a config whose paths leave the folder is refused even if no parser saw it") {
  for (const char* path : {"../escaped", "/tmp/kiln-escaped", "lib/../../escaped", "./x"}) {
    Scratch scratch;
    Config config;
    config.files = {{path, Digest::of("x"), 1}};
    write_file(scratch / "layer", make_zstd(make_tar({{path, "x"}})));
    fs::create_directory(scratch / "unpacked");
    const Error error = error_of([&] {
      unpack_layer(scratch / "layer", config, 1, scratch / "unpacked/variant", "sample@1");
    });
    CHECK(error.code() == ErrorCode::kIntegrity);
    CHECK(fs::is_empty(scratch / "unpacked"));
  }
}

TEST_CASE("unpack: a large file, decoded or hashed beside its writer, is judged as a small one") {
  const std::string repetitive(3u << 20, 'a');  // decoded on a thread of its own
  std::string random(3u << 20, '\0');           // stored by zstd, and hashed on a thread of its own
  std::mt19937 generator(1);
  for (char& byte : random) byte = static_cast<char>(generator());
  const struct {
    const char* name;
    std::function<std::string(const std::string& text)> layer;
    const char* text;  // nullptr: it is sound
  } cases[] = {
      {"sound",
       [](const std::string& text) {
         return make_zstd(make_tar({{"large", text}}));
       },
       nullptr},
      {"the last byte",
       [](std::string text) {
         text.back() = static_cast<char>(text.back() ^ 1);
         return make_zstd(make_tar({{"large", text}}));
       },
       "digest is "},
      {"cut",
       [](const std::string& text) {
         const std::string layer = make_zstd(make_tar({{"large", text}}));
         return layer.substr(0, layer.size() / 2);
       },
       ""},
      {"goes on",
       [](const std::string& text) {
         return make_zstd(make_tar({{"large", text}}) + "more");
       },
       "goes on after the archive's end"},
      {"a bomb behind the end",
       [](const std::string& text) {
         return make_zstd(make_tar({{"large", text}}) + std::string(64u << 20, '\0'));
       },
       "decompresses to more than"},
  };
  for (const std::string& text : {repetitive, random}) {
    for (const auto& each : cases) {
      CAPTURE(each.name);
      Scratch scratch;
      write_file(scratch / "layer", each.layer(text));
      fs::create_directory(scratch / "unpacked");
      Config config;
      config.files = {{"large", Digest::of(text), text.size()}};
      const auto unpack = [&] {
        unpack_layer(scratch / "layer", config, text.size(), scratch / "unpacked/variant",
                     "sample@1");
      };
      if (each.text == nullptr) {
        unpack();
        CHECK(read_file(scratch / "unpacked/variant/large") == text);
      } else {
        const Error error = error_of(unpack);
        CHECK(error.code() == ErrorCode::kIntegrity);
        CHECK_CONTAINS(error.what(), each.text);
        CHECK(fs::is_empty(scratch / "unpacked"));
      }
    }
  }
}

TEST_CASE("unpack: a reader ahead gives all that it read, then what it threw") {
  for (const int pieces : {0, 1, 3, 4, 5, 20}) {
    int read = 0;
    ReadAhead ahead([&](std::span<char> to) -> std::size_t {
      if (read == pieces) throw std::runtime_error("the end");
      std::fill_n(to.begin(), 7, static_cast<char>('a' + read));
      ++read;
      return 7;
    });
    for (int i = 0; i < pieces; ++i)
      CHECK(ahead.next() == std::string(7, static_cast<char>('a' + i)));
    for (int again = 0; again < 2; ++again) CHECK_THROWS_WITH(ahead.next(), "the end");
  }
  for (int taken = 0; taken < 10; ++taken) {  // dropped while it reads
    ReadAhead ahead([](std::span<char> to) { return to.size(); });
    for (int i = 0; i < taken; ++i) CHECK_FALSE(ahead.next().empty());
  }
}

TEST_CASE("unpack: files are read-only, and the second writer keeps the first one's") {
  Scratch scratch;
  Config config;
  config.files = {{"a/b/c", Digest::of("text"), 4}, {"empty", Digest::of(""), 0}};
  write_file(scratch / "layer", make_zstd(make_tar({{"a/b/c", "text"}, {"empty", ""}})));
  fs::create_directory(scratch / "unpacked");
  const fs::path folder = scratch / "unpacked/variant";
  unpack_layer(scratch / "layer", config, 4, folder, "sample@1");
  struct stat first {};
  REQUIRE(::stat((folder / "a/b/c").c_str(), &first) == 0);
  CHECK((first.st_mode & 0777) == 0444);
  CHECK(read_file(folder / "a/b/c") == "text");
  CHECK(check_unpacked(folder, config).empty());

  unpack_layer(scratch / "layer", config, 4, folder, "sample@1");
  struct stat second {};
  REQUIRE(::stat((folder / "a/b/c").c_str(), &second) == 0);
  CHECK(first.st_ino == second.st_ino);
  CHECK(std::distance(fs::directory_iterator(scratch / "unpacked"), {}) == 1);

  fs::remove(folder / "empty");
  REQUIRE(check_unpacked(folder, config).size() == 1);
  CHECK(check_unpacked(folder, config)[0].problem == "is missing");
}

}  // namespace
}  // namespace kiln::test
