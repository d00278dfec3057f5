// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "base/quote.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "documents/needed_loader.hpp"
#include "kiln/error.hpp"

namespace kiln {

namespace {

constexpr std::uint64_t kSchemaVersion = 1;
constexpr std::size_t kMaxPath = 1024;
constexpr std::size_t kMaxPathComponent = 255;
constexpr std::size_t kMaxWord = 128;

bool is_path_component(std::string_view text) {
  return !text.empty() && text.size() <= kMaxPathComponent && text != "." && text != ".." &&
         is_word(text, "._-+");
}

bool is_archive_path(std::string_view path) {
  if (path.size() > kMaxPath) return false;
  for (;;) {
    const std::size_t slash = path.find('/');
    if (!is_path_component(path.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

bool is_symbol(std::string_view text) {
  const auto starts_with_digit = [&] { return text.front() >= '0' && text.front() <= '9'; };
  return !text.empty() && text.size() <= kMaxWord && !starts_with_digit() && is_word(text, "_");
}

bool is_build_id(std::string_view text) {
  return !text.empty() && text.size() <= kMaxWord &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

Needs parse_config_needs(const JsonView& document) {
  const JsonView host = document.at("host");
  const JsonView os = host.at("os");
  if (os.string() != "linux") os.fail("found " + quote(os.string()) + ", expected linux");
  const Arch arch = parse_fact(host.at("arch"), parse_arch, "x86_64 or aarch64");
  Needs needs{.cpu = parse_cpu_fact(host.at("cpu")), .glibc = parse_version_fact(host.at("glibc"))};
  if (document.has("cuda")) {
    const JsonView cuda = document.at("cuda");
    needs.toolkit = parse_version_fact(cuda.at("toolkit"));
    needs.min_driver = parse_version_fact(cuda.at("min_driver"));
    for (const JsonView& word : cuda.at("sass").items()) {
      add_device_code(word, word.string(), DeviceCode::Kind::kSass, needs);
    }
    for (const JsonView& word : cuda.at("ptx").items()) {
      add_device_code(word, word.string(), DeviceCode::Kind::kPtx, needs);
    }
  }
  for (const JsonView& word : document.at("needs").items()) add_library(word, word.string(), needs);
  check_needs(document, needs, arch);
  return needs;
}

/// Refuses two entries of one path and a file that another one's path needs to be a folder.
void check_paths(const JsonView& list, const std::vector<ArchiveFile>& files) {
  std::set<std::string_view> paths;
  for (const ArchiveFile& file : files) {
    if (!paths.insert(file.path).second) list.fail("names " + file.path + " twice");
  }
  for (const std::string_view path : paths) {
    for (std::size_t slash = path.find('/'); slash != std::string_view::npos;
         slash = path.find('/', slash + 1)) {
      if (paths.count(path.substr(0, slash)) != 0) {
        list.fail("names " + std::string(path.substr(0, slash)) + " as a file and as a folder");
      }
    }
  }
}

std::vector<ArchiveFile> parse_files(const JsonView& list) {
  std::vector<ArchiveFile> files;
  std::uint64_t total = 0;
  for (const JsonView& item : list.items()) {
    ArchiveFile file{
        .path = parse_word(item.at("path"), is_archive_path,
                           "a relative path of letters, digits, '.', '_', '-', '+' and '/'"),
        .digest = parse_digest(item.at("digest")),
        .size = item.at("size").unsigned_integer()};
    if (file.size > kMaxUnpackedBytes - total) list.fail("adds up to more than 1 TiB");
    total += file.size;
    files.push_back(std::move(file));
  }
  check_paths(list, files);
  return files;
}

void parse_entry(const JsonView& entry, Config& config) {
  const JsonView library = entry.at("library");
  config.library = library.string();
  const bool listed =
      std::any_of(config.files.begin(), config.files.end(),
                  [&](const ArchiveFile& file) { return file.path == config.library; });
  if (!listed) library.fail("found " + quote(config.library) + ", which is not one of the files");
  config.symbol = parse_word(entry.at("symbol"), is_symbol, "a C identifier");
}

Json files_json(std::vector<ArchiveFile> files) {
  std::sort(files.begin(), files.end(),
            [](const ArchiveFile& a, const ArchiveFile& b) { return a.path < b.path; });
  Json list = Json::array();
  for (const ArchiveFile& file : files) {
    list.push_back({{"path", file.path}, {"digest", file.digest.str()}, {"size", file.size}});
  }
  return list;
}

}  // namespace

Config parse_config(std::string_view bytes, std::string_view subject) {
  const Json json = parse_json(bytes, subject);
  check_readable(json, kConfigKeys, subject);
  const JsonView document(json, std::string(subject));
  const JsonView schema = document.at("schemaVersion");
  if (schema.unsigned_integer() != kSchemaVersion) {
    schema.fail("found " + schema.json().dump() + ", expected " + std::to_string(kSchemaVersion));
  }
  Config config{.name = parse_package_name(document.at("name")),
                .version = document.at("version").version_number(),
                .variant = parse_variant_id(document.at("variant")),
                .requires_ = parse_needed_loader(document, kConfigKeys),
                .needs = parse_config_needs(document),
                .files = parse_files(document.at("files"))};
  parse_entry(document.at("entry"), config);
  config.build_id = parse_word(document.at("build_id"), is_build_id, "one word");
  if (document.has("dev_files")) config.dev_files = parse_files(document.at("dev_files"));
  if (document.has("build")) config.build = dump_json(document.at("build").json());
  return config;
}

std::string serialize_config(const Config& config) {
  const Needs& needs = config.needs;
  Json document = {{"schemaVersion", kSchemaVersion},
                   {"name", config.name},
                   {"version", config.version},
                   {"variant", config.variant},
                   {kConfigKeys.min_loader, config.requires_.min_loader},
                   {kConfigKeys.abi, config.requires_.abi},
                   {"host",
                    {{"os", "linux"},
                     {"arch", to_string(needs.cpu.arch)},
                     {"cpu", to_string(needs.cpu)},
                     {"glibc", to_string(needs.glibc)}}},
                   {"needs", library_words(needs)},
                   {"files", files_json(config.files)},
                   {"entry", {{"library", config.library}, {"symbol", config.symbol}}},
                   {"build_id", config.build_id}};
  if (needs.toolkit && needs.min_driver) {
    document["cuda"] = {{"toolkit", to_string(*needs.toolkit)},
                        {"min_driver", to_string(*needs.min_driver)},
                        {"sass", code_words(needs, DeviceCode::Kind::kSass)},
                        {"ptx", code_words(needs, DeviceCode::Kind::kPtx)}};
  }
  if (!config.dev_files.empty()) document["dev_files"] = files_json(config.dev_files);
  if (!config.build.empty()) document["build"] = Json::parse(config.build);
  return dump_json(document);
}

void check_agreement(const Index& index, const Variant& variant, const Config& config) {
  const std::string subject = "config of " + label(index.name, index.version) + " " + variant.id;
  const auto agree = [&](std::string_view fact, const std::string& promised,
                         const std::string& found) {
    if (promised == found) return;
    throw Error(ErrorCode::kIntegrity, subject + ": " + std::string(fact) + " is " + quote(found) +
                                           ", the index says " + quote(promised) +
                                           "; nothing was installed. Report it to the publisher");
  };
  agree("name", index.name, config.name);
  agree("version", std::to_string(index.version), std::to_string(config.version));

  // In the index's own words: whatever it promises is compared, and nothing can be forgotten.
  const Json promised = variant_annotations(variant);
  const Json found = variant_annotations({.manifest = variant.manifest,
                                          .id = config.variant,
                                          .requires_ = config.requires_,
                                          .needs = config.needs,
                                          .tested = variant.tested,
                                          .tested_on = variant.tested_on});
  const auto word = [](const Json& annotations, const std::string& key) {
    const auto member = annotations.find(key);
    if (member == annotations.end()) return std::string();
    return member->is_string() ? member->get<std::string>() : dump_json(*member);
  };
  for (const auto& [key, value] : promised.items())
    agree(key, word(promised, key), word(found, key));
  for (const auto& [key, value] : found.items()) agree(key, word(promised, key), word(found, key));
}

}  // namespace kiln
