// SPDX-License-Identifier: Apache-2.0
//
// write_seeds FOLDER: what the fuzzers start from, <FOLDER>/<target>/<n>, written by the
// serializers that the publisher uses.
#define DOCTEST_CONFIG_IMPLEMENT  // samples.hpp serves tests too
#include <archive.h>
#include <archive_entry.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "attest/statement.hpp"
#include "documents/host.hpp"
#include "documents/json.hpp"
#include "documents/lockfile.hpp"
#include "documents/manifest.hpp"
#include "oci/referrers.hpp"
#include "samples.hpp"

namespace {

namespace fs = std::filesystem;
using namespace kiln;

void write(const fs::path& folder, const std::vector<std::string>& seeds) {
  fs::create_directories(folder);
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    std::ofstream(folder / std::to_string(i), std::ios::binary) << seeds[i];
  }
}

la_ssize_t append(archive*, void* self, const void* data, std::size_t size) {
  static_cast<std::string*>(self)->append(static_cast<const char*>(data), size);
  return static_cast<la_ssize_t>(size);
}

struct File {
  std::string path;
  std::string content;
  unsigned type = AE_IFREG;
};

/// As build-matrix packs a layer, or without its compression.
std::string pack(const std::vector<File>& files, bool compress, bool long_names = false) {
  std::string bytes;
  archive* const writer = archive_write_new();
  if (compress) archive_write_add_filter_zstd(writer);
  if (long_names) {
    archive_write_set_format_pax(writer);
  } else {
    archive_write_set_format_pax_restricted(writer);
  }
  archive_write_set_bytes_in_last_block(writer, 1);
  archive_write_open(writer, &bytes, nullptr, &append, nullptr);
  for (const File& file : files) {
    archive_entry* const entry = archive_entry_new();
    archive_entry_set_pathname(entry, file.path.c_str());
    archive_entry_set_filetype(entry, file.type);
    if (file.type == AE_IFLNK) archive_entry_set_symlink(entry, "LICENSE");
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, static_cast<la_int64_t>(file.content.size()));
    archive_write_header(writer, entry);
    archive_write_data(writer, file.content.data(), file.content.size());
    archive_entry_free(entry);
  }
  archive_write_close(writer);
  archive_write_free(writer);
  return bytes;
}

std::vector<std::string> layers() {
  const std::vector<File> good{{"LICENSE", "free\n"}, {"lib/libsample.so", "a library\n"}};
  const std::vector<File> link{{"LICENSE", "free\n"}, {"lib/libsample.so", "", AE_IFLNK}};
  const std::vector<File> name{{std::string(300, 'n'), "free\n"}};
  const std::string as_layer(1, '\0');
  const std::string as_tar(1, '\1');
  const std::string as_mended_tar(1, '\2');
  return {as_layer + pack(good, true),
          as_tar + pack(good, false),
          as_mended_tar + pack(good, false),
          as_mended_tar + pack(link, false),
          as_mended_tar + pack(name, false, true),
          as_mended_tar + pack(good, false, true)};
}

/// An OCI archive as `kiln bundle create` writes it, of one kernel.
std::string bundle() {
  const auto descriptor_of = [](std::string_view type, std::string_view bytes) {
    return Descriptor{std::string(type), Digest::of(bytes), bytes.size()};
  };
  const auto blob = [](const std::string& bytes) {
    return File{"blobs/sha256/" + Digest::of(bytes).hex(), bytes};
  };
  const std::string manifest = serialize_manifest(test::sample_manifest(), "x.tar.zst");
  Index index = test::sample_index();
  for (Variant& each : index.variants) each.manifest = descriptor_of(kMediaTypeManifest, manifest);
  const std::string document = serialize_index(index);
  const std::string tags =
      R"({"schemaVersion":2,"manifests":[{"mediaType":")" + std::string(kMediaTypeIndex) +
      R"(","digest":")" + Digest::of(document).str() + R"(","size":)" +
      std::to_string(document.size()) + R"(,"annotations":{"org.opencontainers.image.ref.name":")" +
      index.name + ":" + std::to_string(index.version) + R"("}}]})";
  return pack({blob(document),
               blob(manifest),
               {"index.json", tags},
               {"oci-layout", R"({"imageLayoutVersion":"1.0.0"})"}},
              false);
}

Lockfile sample_lock() {
  const Descriptor document{std::string(kMediaTypeManifest), Digest::of("x"), 936};
  const LockedVariant variant{document, document, document, "lib/libsample.so", Digest::of("y")};
  return {{"geglu-mlp",
           {"https://example.org/kernels",
            1,
            {std::string(kMediaTypeIndex), Digest::of("z"), 1660},
            {{"cpu-x86-64-v3", variant}, {"cu12.9-sm_90a-x86_64", variant}}}}};
}

/// As fuzz_trust reads them: the first byte says as what.
std::vector<std::string> trust_documents() {
  const auto role = [](const std::string& type, const std::string& rest) {
    return R"({"signatures":[{"keyid":"a","sig":"00ff"}],"signed":{"_type":")" + type +
           R"(","spec_version":"1.0.31","version":3,"expires":"2030-01-31T00:00:00Z",)" + rest +
           "}}";
  };
  const std::string keys =
      R"("keys":{"a":{"keytype":"ed25519","scheme":"ed25519","keyval":{"public":")" +
      std::string(64, '0') + R"("}}})";
  const std::string by = R"({"keyids":["a"],"threshold":1})";
  const std::string root = role("root", R"("consistent_snapshot":true,)" + keys +
                                            R"(,"roles":{"root":)" + by + R"(,"timestamp":)" + by +
                                            R"(,"snapshot":)" + by + R"(,"targets":)" + by + "}");
  const std::string hashes = R"("hashes":{"sha256":")" + std::string(64, 'a') + R"("})";
  const std::string advisory =
      R"(,"custom":{"advisory":{"schema":"kiln.advisory/1","id":"KA-1","text":"x","link":"https://x",)"
      R"("action":"warn","published":"2026-11-26T00:00:00Z","package":"a-*","versions":{"from":1},)"
      R"("variants":["cpu-x86-64"],"gpus":["9.0"],"drivers":{"to":"570.124.06"}}}})";
  return {std::string(1, '\0') + root,
          "\x01" + role("timestamp",
                        R"("meta":{"snapshot.json":{"version":2,"length":9,)" + hashes + "}}"),
          "\x02" +
              role("snapshot", R"("meta":{"targets.json":{"version":2},"a b.json":{"version":1}})"),
          "\x03" + role("targets",
                        R"("targets":{"geglu-mlp/1":{"length":1660,)" + hashes +
                            R"(,"custom":{"yanked":"why"}},"kiln.advisories/KA-1":{"length":1,)" +
                            hashes + advisory + R"(},"delegations":{)" + keys +
                            R"(,"roles":[{"name":"acme","keyids":["a"],"threshold":1,)"
                            R"("terminating":true,"paths":["acme-*/?"]}]})"),
          "\x04" + root,
          "\x05"
          R"({"config":{"mediaType":"a","digest":"sha256:)" +
              Digest::of("{}").hex() +
              R"(","size":2,"data":"e30="},"layers":[{"mediaType":"b","digest":"sha256:)" +
              Digest::of("x").hex() +
              R"(","size":1,"annotations":{"org.opencontainers.image.title":"y"}}]})",
          "\x06"
          R"({"schema":"kiln.trust/1","roots":{"https://example.org":"{}"},"unsigned":["/srv"]})"};
}

/// As fuzz_referrers reads them: the first byte says as what.
std::vector<std::string> referrer_documents() {
  const Descriptor index{std::string(kMediaTypeIndex), Digest::of("index"), 1660};
  const MadeReferrer made =
      make_referrer(index, attest::kMediaTypeBundle, "bundle", {{"dev.example", "a"}});
  const ListedReferrer other{{std::string(kMediaTypeManifest), Digest::of("x"), 9}, "a/b", ""};
  return {std::string(1, '\0') + serialize_referrers({made.listed, other}), "\x01" + made.manifest};
}

/// As fuzz_statement reads them, likewise.
std::vector<std::string> statements() {
  const attest::Statement statement{{{"geglu-mlp@1", Digest::of("index")}},
                                    std::string(attest::kKinds[1].predicate_type),
                                    R"({"a":[1]})"};
  const std::string payload = attest::serialize_statement(statement);
  const trust::Key key{"ed25519", "ed25519", std::string(64, '0')};
  return {std::string(1, '\0') +
              attest::serialize_bundle({std::string(attest::kPayloadType), payload, {"00ff"}}, key),
          "\x01" + payload,
          "\x02"
          "-----BEGIN PUBLIC KEY-----\n"
          "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n"
          "-----END PUBLIC KEY-----\n"};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_seeds FOLDER\n";
    return 2;
  }
  const fs::path folder = argv[1];
  write(folder / "index", {serialize_index(test::sample_index())});
  write(folder / "manifest", {serialize_manifest(test::sample_manifest(), "x.tar.zst")});
  write(folder / "config", {serialize_config(test::sample_config())});
  write(folder / "lockfile", {serialize_lockfile(sample_lock()), serialize_lockfile({})});
  write(folder / "host",
        {serialize_host(test::gpu_host("12.9", "9.0")), serialize_host(test::cpu_host())});
  write(folder / "requirements",
        {R"({"schema":"kiln.requirements/1","registry":"https://example.org",)"
         R"("kernels":{"geglu-mlp":{"version":1}}})"});
  write(folder / "challenge", {R"(Bearer realm="https://example.org/token",service="example.org",)"
                               R"(scope="repository:a/b:pull",error="insufficient_scope")",
                               R"(Negotiate YII+/-._~==, Basic realm="a \"b\" \\")"});
  write(folder / "layer", layers());
  write(folder / "bundle", {std::string(1, '\0') + bundle(), std::string(1, '\1') + bundle()});
  write(folder / "settings",
        {R"({"schema":"kiln.settings/1","mirrors":{"https://example.org/a":)"
         R"(["https://mirror.lan/a","/srv/kiln"]},"insecure_http":["mirror.lan:5000"],)"
         R"("deny":["cu12.9-sm_90a-x86_64"],"network":{"tries":5,"connect_seconds":10,)"
         R"("stall_seconds":30,"deadline_seconds":600,"backoff_ms":500}})"});
  write(folder / "trust", trust_documents());
  write(folder / "referrers", referrer_documents());
  write(folder / "statement", statements());
  return 0;
}
