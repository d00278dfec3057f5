// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/library/pack.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"

namespace kiln::build {
namespace {

struct Read {
  std::string path;
  std::string bytes;
  int mode = 0;
  bool plain = false;  // a regular file of root's, without a time
  bool operator==(const Read&) const = default;
};

std::vector<Read> read_archive(const std::string& bytes) {
  struct Free {
    void operator()(archive* handle) const { archive_read_free(handle); }
  };
  const std::unique_ptr<archive, Free> in(archive_read_new());
  archive_read_support_filter_zstd(in.get());
  archive_read_support_format_tar(in.get());
  REQUIRE(archive_read_open_memory(in.get(), bytes.data(), bytes.size()) == ARCHIVE_OK);
  std::vector<Read> files;
  archive_entry* entry = nullptr;
  while (archive_read_next_header(in.get(), &entry) == ARCHIVE_OK) {
    Read file{.path = archive_entry_pathname(entry),
              .bytes = std::string(static_cast<std::size_t>(archive_entry_size(entry)), '\0'),
              .mode = static_cast<int>(archive_entry_perm(entry)),
              .plain = archive_entry_filetype(entry) == AE_IFREG && archive_entry_uid(entry) == 0 &&
                       archive_entry_gid(entry) == 0 && archive_entry_mtime(entry) == 0 &&
                       archive_entry_mtime_nsec(entry) == 0};
    REQUIRE(archive_read_data(in.get(), file.bytes.data(), file.bytes.size()) ==
            static_cast<la_ssize_t>(file.bytes.size()));
    files.push_back(std::move(file));
  }
  return files;
}

PackInput example_input() {
  PackInput input;
  input.recipe = {.package = "geglu-mlp",
                  .version = 4,
                  .min_loader = "0.1.0",
                  .variant = "cu12.9-sm_90a-aarch64",
                  .cpu = {Arch::kAarch64, 1},
                  .glibc = {2, 17},
                  .toolkit = Version{12, 9},
                  .min_driver = Version{12, 0},
                  .targets = {parse_device_code("sm_90a").value()},
                  .images = {{"smxx_gemm", parse_device_code("sm_90").value()},
                             {"sm90_gemm", parse_device_code("sm_90a").value()}},
                  .libraries = {"libcublasLt.so.12"},
                  .build_id = "0123456789abcdef0123456789abcdef",
                  .build = R"({"nvrtc":"12.9.86","zig":"0.15.2"})"};
  input.facts = {.arch = Arch::kAarch64,
                 .glibc = {2, 17},
                 .glibc_symbol = "dlopen",
                 .images = {{"smxx_gemm", input.recipe.images[0].code, 10},
                            {"sm90_gemm", input.recipe.images[1].code, 20}}};
  input.library = std::string(5000, 'x') + "library";
  input.package_json = "{}\n";
  input.license = "Apache\n";
  return input;
}

TEST_CASE("pack: an archive's bytes depend on its entries and not on their order") {
  const ArchiveEntry a{.path = "a", .bytes = "one"};
  const ArchiveEntry b{.path = "lib/b.so", .bytes = std::string(100000, 'b'), .mode = 0755};
  const std::string bytes = make_archive({a, b});
  CHECK(bytes == make_archive({b, a}));
  CHECK(bytes != make_archive({a}));
  CHECK(bytes.size() < 1000);
  const std::vector<Read> files = read_archive(bytes);
  CHECK(files == std::vector<Read>{{"a", a.bytes, 0644, true}, {"lib/b.so", b.bytes, 0755, true}});
}

TEST_CASE("pack: the archive holds the library, the licence and package.json") {
  const PackInput input = example_input();
  const std::vector<Read> files = read_archive(pack(input).layer);
  CHECK(files == std::vector<Read>{{"LICENSE", input.license, 0644, true},
                                   {"lib/libgeglu_mlp.so", input.library, 0755, true},
                                   {"package.json", input.package_json, 0644, true}});
}

TEST_CASE("pack: headers and card are a layer of their own, and the library's stays as it is") {
  PackInput input = example_input();
  const Packed without = pack(input);
  CHECK(without.dev.empty());
  CHECK_FALSE(parse_manifest(without.manifest, "manifest").has_dev());
  input.dev = {{.path = "include/kiln/layers/x.hpp", .bytes = "#pragma once\n"},
               {.path = "CARD.md", .bytes = "# x\n"}};
  const Packed packed = pack(input);
  CHECK(packed.layer == without.layer);
  CHECK(read_archive(packed.dev) ==
        std::vector<Read>{{"CARD.md", "# x\n", 0644, true},
                          {"include/kiln/layers/x.hpp", "#pragma once\n", 0644, true}});
  const VariantManifest manifest = parse_manifest(packed.manifest, "manifest");
  CHECK(manifest.dev.digest == Digest::of(packed.dev));
  CHECK(manifest.dev.size == packed.dev.size());
  CHECK(manifest.dev_unpacked_size == 17);
  const Config config = parse_config(packed.config, "config");
  CHECK(config.build_id == parse_config(without.config, "config").build_id);
  CHECK(config.files.size() == 3);
  REQUIRE(config.dev_files.size() == 2);
  CHECK(config.dev_files[1].digest == Digest::of("#pragma once\n"));
}

TEST_CASE("pack: the same input gives the same four files") {
  const Packed first = pack(example_input());
  const Packed second = pack(example_input());
  CHECK(first.layer == second.layer);
  CHECK(first.config == second.config);
  CHECK(first.manifest == second.manifest);
  CHECK(first.descriptor == second.descriptor);
}

TEST_CASE("pack: the documents agree with each other and with what was inspected") {
  PackInput input = example_input();
  input.facts.glibc = {2, 14};
  const Packed packed = pack(input);

  const VariantManifest manifest = parse_manifest(packed.manifest, "manifest");
  CHECK(manifest.layer.digest == Digest::of(packed.layer));
  CHECK(manifest.layer.size == packed.layer.size());
  CHECK(manifest.config.digest == Digest::of(packed.config));
  CHECK(manifest.unpacked_size ==
        input.library.size() + input.license.size() + input.package_json.size());

  const Config config = parse_config(packed.config, "config");
  CHECK(config.library == "lib/libgeglu_mlp.so");
  CHECK(config.symbol == "kiln_package_v1");
  CHECK(config.build_id == input.recipe.build_id);
  CHECK(config.files.size() == 3);
  CHECK(config.needs.glibc == Version{2, 14});

  const Json json = parse_json(packed.descriptor, "descriptor");
  CHECK(json.at("platform").at("architecture") == "arm64");
  const Variant variant = parse_variant(JsonView(json, "descriptor"));
  CHECK(variant.id == input.recipe.variant);
  CHECK(variant.tested == "untested");
  CHECK(variant.manifest.digest == Digest::of(packed.manifest));
  CHECK(variant.needs.toolkit == Version{12, 9});
  CHECK(variant.needs.min_driver == Version{12, 0});
  CHECK(variant.needs.libraries == input.recipe.libraries);
  REQUIRE(variant.needs.device_code.size() == 1);
  CHECK(to_string(variant.needs.device_code[0]) == "sm_90a");
  const Index index{.name = "geglu-mlp", .version = 4, .requires_ = {}, .variants = {variant}};
  CHECK_NOTHROW(check_agreement(index, variant, config));
}

}  // namespace
}  // namespace kiln::build
