// SPDX-License-Identifier: Apache-2.0
//
// Inputs that publish must refuse: each row breaks one fact of a faultless build, and the registry
// must not even come into being.
#include <doctest/doctest.h>

#include "built_fixture.hpp"
#include "kiln/error.hpp"
#include "registry/folder/publish.hpp"

namespace {

using namespace kiln;        // NOLINT(google-build-using-namespace)
using namespace kiln::test;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

struct Refusal {
  std::optional<ErrorCode> code;
  std::string text;
};

Refusal publish_refusal(const fs::path& registry, const fs::path& built) {
  try {
    registry::publish({registry, {built}, {}}, [](const std::string&) {});
    return {};
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
}

struct Row {
  const char* what;
  Tamper tamper;
  const char* says;  ///< must be in the message
};

void check_refused(const std::vector<Row>& rows, const Built& built) {
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const TemporaryFolder folder;
    const Refusal refusal =
        publish_refusal(folder / "registry", write_built(folder / "built", built, row.tamper));
    CHECK(refusal.code == ErrorCode::kIntegrity);
    CAPTURE(refusal.text);
    CHECK(refusal.text.find(row.says) != std::string::npos);
    CHECK_FALSE(fs::exists(folder / "registry"));
  }
}

Tamper layer_of(const std::vector<TarEntry>& entries, int filters = 1) {
  Tamper tamper;
  tamper.layer = [=](std::string& layer) { layer = make_layer(entries, filters); };
  return tamper;
}

std::vector<TarEntry> with(TarEntry extra) {
  std::vector<TarEntry> entries = cuda("12.9", "sm_90a").entries();
  entries.push_back(std::move(extra));
  return entries;
}

std::vector<TarEntry> replaced(std::size_t position, TarEntry entry) {
  std::vector<TarEntry> entries = cuda("12.9", "sm_90a").entries();
  entries[position] = std::move(entry);
  return entries;
}

}  // namespace

TEST_CASE("publish: a layer that is not exactly the config's files is refused") {
  const Built built = cuda("12.9", "sm_90a");
  std::vector<TarEntry> short_list = built.entries();
  short_list.pop_back();
  const std::vector<Row> rows = {
      {"a file is missing", layer_of(short_list), "'package.json' is missing"},
      {"a file too many", layer_of(with({"extra", "x"})),
       "\"extra\", which its config does not list"},
      {"a file twice", layer_of(with({"LICENSE", "Apache-2.0\n"})), "'LICENSE' twice"},
      {"a path that climbs", layer_of(with({"../escape", "x"})), "\"../escape\""},
      {"an absolute path", layer_of(with({"/etc/cron.d/x", "x"})), "cron.d"},
      {"other bytes of the same size", layer_of(replaced(0, {"LICENSE", "apache-2.0\n"})),
       "'LICENSE' in "},
      {"another size", layer_of(replaced(0, {"LICENSE", "MIT\n"})), "'LICENSE' has 4 bytes"},
      {"a symbolic link", layer_of(replaced(0, {"LICENSE", "", "/etc/passwd", 0120000})),
       "not a regular file"},
      {"a hard link", layer_of(replaced(2, {"package.json", "", "LICENSE", 0100000, true})),
       "is a hard link"},
      {"a fifo", layer_of(replaced(0, {"LICENSE", "", "", 0010000})), "not a regular file"},
      {"a folder", layer_of(with({"lib/", "", "", 0040000})), "\"lib/\""},
      {"no compression", layer_of(built.entries(), 0), "0 compression filters"},
      {"zstd in zstd", layer_of(built.entries(), 2), "2 compression filters"},
      {"no archive", {{}, [](std::string& l) { l = "<html>sign in</html>"; }, {}, {}}, "layer"},
      {"an empty layer", {{}, [](std::string& l) { l.clear(); }, {}, {}}, "layer"},
      {"a cut layer", {{}, [](std::string& l) { l.resize(l.size() - 20); }, {}, {}}, "layer"},
      {"a second archive behind it",
       {{},
        [](std::string& l) {
          l += make_layer({{"extra", "x"}});
        },
        {},
        {}},
       "after the archive's end"},
      {"garbage behind it", {{}, [](std::string& l) { l += "garbage!"; }, {}, {}}, "layer"},
  };
  check_refused(rows, built);
}

TEST_CASE("publish: documents that disagree are refused") {
  const std::vector<Row> rows = {
      {"config of another package", {[](Config& c) { c.name = "Not A Name"; }, {}, {}, {}}, ""},
      {"config of another variant",
       {[](Config& c) { c.variant = "cpu-x86-64-v3"; }, {}, {}, {}},
       ""},
      {"config for another GPU",
       {[](Config& c) { c.needs.device_code = {parse_device_code("sm_80").value()}; }, {}, {}, {}},
       ""},
      {"config with another driver floor",
       {[](Config& c) {
          c.needs.min_driver = Version{11, 0};
        },
        {},
        {},
        {}},
       ""},
      {"config with another glibc",
       {[](Config& c) {
          c.needs.glibc = {2, 36};
        },
        {},
        {},
        {}},
       ""},
      {"config without the library",
       {[](Config& c) { c.library = "lib/other.so"; }, {}, {}, {}},
       "lib/other.so"},
      {"version 0", {[](Config& c) { c.version = 0; }, {}, {}, {}}, ""},
      {"manifest with another unpacked size",
       {{}, {}, [](VariantManifest& m) { ++m.unpacked_size; }, {}},
       "bytes unpacked"},
      {"manifest with another layer size",
       {{}, {}, [](VariantManifest& m) { ++m.layer.size; }, {}},
       "layer.tar.zst has"},
      {"manifest of another layer",
       {{}, {}, [](VariantManifest& m) { m.layer.digest = Digest::of("x"); }, {}},
       "layer.tar.zst has digest"},
      {"manifest of another config",
       {{}, {}, [](VariantManifest& m) { m.config.digest = Digest::of("x"); }, {}},
       "the config has digest"},
      {"descriptor of another manifest",
       {{}, {}, {}, [](Variant& v) { v.manifest.digest = Digest::of("x"); }},
       "the manifest has digest"},
      {"descriptor with another size",
       {{}, {}, {}, [](Variant& v) { ++v.manifest.size; }},
       "the manifest has"},
      {"descriptor for another GPU",
       {{},
        {},
        {},
        [](Variant& v) { v.needs.device_code = {parse_device_code("sm_100").value()}; }},
       ""},
      {"descriptor with a claim of tests",
       {{}, {}, {}, [](Variant& v) { v.tested = "NVIDIA H200, surely"; }},
       "NVIDIA H200, surely"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const TemporaryFolder folder;
    const Refusal refusal = publish_refusal(
        folder / "registry", write_built(folder / "built", cuda("12.9", "sm_90a"), row.tamper));
    CHECK(refusal.code == ErrorCode::kIntegrity);
    CAPTURE(refusal.text);
    CHECK(refusal.text.find(row.says) != std::string::npos);
    CHECK_FALSE(fs::exists(folder / "registry"));
  }
}

TEST_CASE("publish: a dev layer that is not exactly the config's files is refused") {
  const std::vector<Row> rows = {
      {"other bytes",
       {{},
        {},
        {},
        {},
        [](std::string& dev) {
          dev = make_layer({{"include/x.hpp", "xy"}});
        }},
       "'include/x.hpp' in "},
      {"a file too many",
       {{},
        {},
        {},
        {},
        [](std::string& dev) {
          dev = make_layer({{"include/x.hpp", "//"}, {"extra", "x"}});
        }},
       "\"extra\", which its config does not list"},
      {"a link out of it",
       {{},
        {},
        {},
        {},
        [](std::string& dev) {
          dev = make_layer({{"include/x.hpp", "", "/etc/passwd", 0120000}});
        }},
       "not a regular file"},
      {"no archive",
       {{}, {}, {}, {}, [](std::string& dev) { dev = "<html>sign in</html>"; }},
       "dev layer"},
      {"another digest",
       {{}, {}, [](VariantManifest& m) { m.dev.digest = Digest::of("x"); }, {}},
       "dev.tar.zst has digest"},
      {"another size", {{}, {}, [](VariantManifest& m) { ++m.dev.size; }, {}}, "dev.tar.zst has"},
      {"another unpacked size",
       {{}, {}, [](VariantManifest& m) { ++m.dev_unpacked_size; }, {}},
       "bytes unpacked"},
      {"none in the manifest",
       {{}, {}, [](VariantManifest& m) { m.dev = {}; }, {}},
       "lists files of a dev layer that it lacks"},
      {"none in the config",
       {[](Config& c) { c.dev_files.clear(); }, {}, {}, {}},
       "a dev layer of which its config lists no file"},
  };
  Built built = cpu("x86-64-v3");
  built.header = "//";
  check_refused(rows, built);
  const TemporaryFolder folder;
  write_built(folder / "built", built);
  CHECK(publish_refusal(folder / "registry", folder / "built").text.empty());
  Built other = cpu("x86-64-v4");
  other.header = "/**/";
  write_built(folder / "built", other);
  CHECK(publish_refusal(folder / "other", folder / "built").text.find("one build of a package") !=
        std::string::npos);
}

TEST_CASE("publish: a damaged, missing or foreign file is refused, and the file is named") {
  struct FileRow {
    const char* file;
    const char* text;  ///< nothing: the file is removed
    ErrorCode code;
  };
  const std::vector<FileRow> rows = {
      {"descriptor.json", "{", ErrorCode::kIntegrity},
      {"descriptor.json", "[]", ErrorCode::kIntegrity},
      {"descriptor.json", nullptr, ErrorCode::kNotFound},
      {"manifest.json", "{}", ErrorCode::kIntegrity},
      {"manifest.json", nullptr, ErrorCode::kNotFound},
      {"config.json", "{}", ErrorCode::kIntegrity},
      {"config.json", nullptr, ErrorCode::kNotFound},
      {"layer.tar.zst", "", ErrorCode::kIntegrity},
      {"layer.tar.zst", nullptr, ErrorCode::kNotFound},
  };
  for (const FileRow& row : rows) {
    CAPTURE(row.file);
    const TemporaryFolder folder;
    const fs::path built = write_built(folder / "built", cpu("x86-64-v3"));
    if (row.text == nullptr) {
      fs::remove(built / row.file);
    } else {
      write_text(built / row.file, row.text);
    }
    // Given as the package's folder: an incomplete variant is refused, not left out.
    const Refusal refusal = publish_refusal(folder / "registry", folder / "built");
    CHECK(refusal.code == row.code);
    CHECK(refusal.text.find("cpu-x86-64-v3") != std::string::npos);
    CHECK_FALSE(fs::exists(folder / "registry"));
  }
}

TEST_CASE("publish: a folder of two packages or versions is refused") {
  const TemporaryFolder folder;
  Built other = cpu("x86-64-v4");
  SUBCASE("another package") {
    other.name = "another-op";
  }
  SUBCASE("another version") {
    other.version = 2;
  }
  write_built(folder / "built", cpu("x86-64-v3"));
  write_built(folder / "built", other);
  const Refusal refusal = publish_refusal(folder / "registry", folder / "built");
  CHECK(refusal.code == ErrorCode::kIntegrity);
  CHECK(refusal.text.find("tiny-op@1") != std::string::npos);
  CHECK_FALSE(fs::exists(folder / "registry"));
}

TEST_CASE("publish: a folder without variants, or no folder, is not found") {
  const TemporaryFolder folder;
  CHECK(publish_refusal(folder / "registry", folder / "absent").code == ErrorCode::kNotFound);
  fs::create_directories(folder / "empty/x");
  CHECK(publish_refusal(folder / "registry", folder / "empty").code == ErrorCode::kNotFound);
}
