// SPDX-License-Identifier: Apache-2.0
#include "documents/manifest.hpp"

#include <array>
#include <set>

#include "base/join.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "documents/needed_loader.hpp"
#include "kiln/error.hpp"

namespace kiln {

namespace {

constexpr std::string_view kKeyKernel = "dev.kiln.kernel";
constexpr std::string_view kKeyVersion = "org.opencontainers.image.version";
constexpr std::string_view kKeyVariant = "dev.kiln.variant";
constexpr std::string_view kKeyArch = "dev.kiln.host.arch";
constexpr std::string_view kKeyCpu = "dev.kiln.host.cpu";
constexpr std::string_view kKeyGlibc = "dev.kiln.host.glibc";
constexpr std::string_view kKeyToolkit = "dev.kiln.cuda.toolkit";
constexpr std::string_view kKeyMinDriver = "dev.kiln.cuda.min-driver";
constexpr std::string_view kKeySass = "dev.kiln.cuda.sass";
constexpr std::string_view kKeyPtx = "dev.kiln.cuda.ptx";
constexpr std::string_view kKeyNeeds = "dev.kiln.needs";
constexpr std::string_view kKeyTested = "dev.kiln.tested";
constexpr std::string_view kKeyTestedOn = "dev.kiln.tested-on";  // a JSON array: names have commas
constexpr std::string_view kKeyCarriedManifest = "dev.kiln.manifest";
constexpr std::string_view kKeyCarriedConfig = "dev.kiln.config";
constexpr std::array kCarriedTexts = {kKeyCarriedManifest, kKeyCarriedConfig};
constexpr std::string_view kKeyTitle = "org.opencontainers.image.title";
constexpr std::string_view kKeySummary = "org.opencontainers.image.description";
constexpr std::string_view kKeyLicense = "org.opencontainers.image.licenses";
constexpr std::string_view kKeyUnpackedSize = "dev.kiln.unpacked-size";
constexpr std::string_view kKeyLayer = "dev.kiln.layer";  // what it is for; the library's has none
constexpr std::string_view kDevLayer = "dev";

/// Calls `add` with each word of a comma-separated member, which may be missing or empty.
template <class Add>
void for_each_word(const JsonView& annotations, std::string_view key, Add add) {
  if (!annotations.has(key)) return;
  const JsonView list = annotations.at(key);
  const std::string text = list.string();
  if (text.empty()) return;
  std::string_view rest = text;
  for (;;) {
    const std::size_t comma = rest.find(',');
    add(list, rest.substr(0, comma));
    if (comma == std::string_view::npos) return;
    rest.remove_prefix(comma + 1);
  }
}

void expect(const JsonView& view, std::string_view expected) {
  const std::string found = view.string();
  if (found != expected) view.fail("found " + quote(found) + ", expected " + std::string(expected));
}

void expect_schema(const JsonView& document, std::string_view media_type,
                   std::string_view artifact_type) {
  const JsonView schema = document.at("schemaVersion");
  if (schema.unsigned_integer() != 2) schema.fail("found " + schema.json().dump() + ", expected 2");
  expect(document.at("mediaType"), media_type);
  expect(document.at("artifactType"), artifact_type);
}

Descriptor parse_document_descriptor(const JsonView& json, std::string_view media_type) {
  expect(json.at("mediaType"), media_type);
  Descriptor descriptor = parse_descriptor(json);
  if (descriptor.size > kMaxDocumentBytes) {
    json.at("size").fail("found " + std::to_string(descriptor.size) + " bytes, at most " +
                         std::to_string(kMaxDocumentBytes) + " are read");
  }
  return descriptor;
}

const Json& annotations_of(const Json& document) {
  static const Json none;
  if (!document.is_object()) return none;
  const auto found = document.find("annotations");
  return found == document.end() ? none : *found;
}

/// A variant for a newer Kiln: what can be named of it. Without an id it cannot be.
Variant name_only(const Json& descriptor) {
  const Json& annotations = annotations_of(descriptor);
  Variant variant{.requires_ = guess_needed_loader(annotations, kAnnotationKeys),
                  .tested = std::string(kUntested),
                  .unread = dump_json(descriptor)};
  try {
    variant.id = parse_variant_id(JsonView(annotations, "variant").at(kKeyVariant));
    variant.manifest = parse_descriptor(JsonView(descriptor, "variant"));
  } catch (const Error&) {
    // Its shape is the future's to choose: what does not read stays empty.
  }
  return variant;
}

Needs parse_stated_needs(const JsonView& annotations) {
  const Arch arch = parse_fact(annotations.at(kKeyArch), parse_arch, "x86_64 or aarch64");
  Needs needs{.cpu = parse_cpu_fact(annotations.at(kKeyCpu)),
              .glibc = parse_version_fact(annotations.at(kKeyGlibc))};
  if (annotations.has(kKeyToolkit)) {
    needs.toolkit = parse_version_fact(annotations.at(kKeyToolkit));
  }
  if (annotations.has(kKeyMinDriver)) {
    needs.min_driver = parse_version_fact(annotations.at(kKeyMinDriver));
  }
  for_each_word(annotations, kKeySass, [&](const JsonView& list, std::string_view word) {
    add_device_code(list, word, DeviceCode::Kind::kSass, needs);
  });
  for_each_word(annotations, kKeyPtx, [&](const JsonView& list, std::string_view word) {
    add_device_code(list, word, DeviceCode::Kind::kPtx, needs);
  });
  for_each_word(annotations, kKeyNeeds, [&](const JsonView& list, std::string_view word) {
    add_library(list, word, needs);
  });
  check_needs(annotations, needs, arch);
  return needs;
}

/// A line for people, which decides nothing; empty where there is none.
std::string parse_note(const JsonView& annotations, std::string_view key) {
  return annotations.has(key) ? parse_text(annotations.at(key)) : "";
}

std::string parse_carried(const JsonView& annotations, std::string_view key) {
  if (!annotations.has(key)) return {};
  const JsonView text = annotations.at(key);
  const auto* const bytes = text.json().get_ptr<const std::string*>();
  if (bytes != nullptr && bytes->size() > kMaxCarriedBytes) {
    text.fail("found " + std::to_string(bytes->size()) + " bytes, at most " +
              std::to_string(kMaxCarriedBytes) + " are carried");
  }
  return text.string();
}

Descriptor parse_layer(const JsonView& layer, std::uint64_t& unpacked_size) {
  expect(layer.at("mediaType"), kMediaTypeLayer);
  Descriptor descriptor = parse_descriptor(layer);
  const JsonView unpacked = layer.at("annotations").at(kKeyUnpackedSize);
  const std::string text = unpacked.string();
  const auto size = parse_decimal(text, kMaxUnpackedBytes);
  if (!size) unpacked.fail("found " + quote(text) + ", expected a number of bytes, at most 1 TiB");
  unpacked_size = *size;
  return descriptor;
}

Json layer_json(const Descriptor& layer, std::uint64_t unpacked_size, const std::string& title) {
  Json json = to_json(layer);
  json["annotations"] = {{kKeyTitle, title}, {kKeyUnpackedSize, std::to_string(unpacked_size)}};
  return json;
}

int parse_version_annotation(const JsonView& view) {
  const std::string text = view.string();
  const int number = parse_version_number(text);
  if (number == 0) view.fail("found " + quote(text) + ", expected a number from 1");
  return number;
}

}  // namespace

namespace {

std::vector<std::string> parse_tested_on(const JsonView& annotations) {
  std::vector<std::string> names;
  if (!annotations.has(kKeyTestedOn)) return names;
  const JsonView text = annotations.at(kKeyTestedOn);
  const Json json = parse_json(text.string(), text.path());
  const std::vector<JsonView> items = JsonView(json, text.path()).items();
  if (items.size() > kMaxTestedOn) {
    text.fail("has " + std::to_string(items.size()) + " names, at most " +
              std::to_string(kMaxTestedOn) + " are read");
  }
  for (const JsonView& each : items) names.push_back(parse_text(each));
  return names;
}

}  // namespace

Json variant_annotations(const Variant& variant) {
  if (!variant.unread.empty()) return annotations_of(Json::parse(variant.unread));
  const Needs& needs = variant.needs;
  Json annotations = {{kKeyVariant, variant.id},
                      {kAnnotationKeys.min_loader, variant.requires_.min_loader},
                      {kAnnotationKeys.abi, std::to_string(variant.requires_.abi)},
                      {kKeyArch, to_string(needs.cpu.arch)},
                      {kKeyCpu, to_string(needs.cpu)},
                      {kKeyGlibc, to_string(needs.glibc)},
                      {kKeyTested, variant.tested.empty() ? kUntested : variant.tested}};
  const auto put = [&](std::string_view key, const std::string& value) {
    if (!value.empty()) annotations[key] = value;
  };
  if (needs.toolkit) put(kKeyToolkit, to_string(*needs.toolkit));
  if (needs.min_driver) put(kKeyMinDriver, to_string(*needs.min_driver));
  put(kKeySass, join(code_words(needs, DeviceCode::Kind::kSass), ","));
  put(kKeyPtx, join(code_words(needs, DeviceCode::Kind::kPtx), ","));
  put(kKeyNeeds, join(library_words(needs), ","));
  if (!variant.tested_on.empty()) annotations[kKeyTestedOn] = dump_json(variant.tested_on);
  return annotations;
}

Json variant_descriptor(const Variant& variant) {
  if (!variant.unread.empty()) return Json::parse(variant.unread);
  // No artifactType here: skopeo 1.9 drops it from an index's descriptors, which changes the
  // index's digest. It stands in the manifest itself.
  Json descriptor = to_json(variant.manifest);
  Json& annotations = descriptor["annotations"] = variant_annotations(variant);
  const Carried& carried = variant.carried;
  if (!carried.manifest.empty()) annotations[kKeyCarriedManifest] = carried.manifest;
  if (!carried.config.empty()) annotations[kKeyCarriedConfig] = carried.config;
  descriptor["platform"] = {
      {"os", "linux"},
      {"architecture", variant.needs.cpu.arch == Arch::kX86_64 ? "amd64" : "arm64"}};
  return descriptor;
}

Variant parse_variant(const JsonView& descriptor) {
  if (!too_new(annotations_of(descriptor.json()), kAnnotationKeys).empty()) {
    return name_only(descriptor.json());
  }
  Variant variant{.manifest = parse_document_descriptor(descriptor, kMediaTypeManifest)};
  const JsonView annotations = descriptor.at("annotations");
  variant.id = parse_variant_id(annotations.at(kKeyVariant));
  variant.requires_ = parse_needed_loader(annotations, kAnnotationKeys);
  variant.needs = parse_stated_needs(annotations);
  variant.tested = annotations.has(kKeyTested) ? parse_text(annotations.at(kKeyTested)) : kUntested;
  variant.tested_on = parse_tested_on(annotations);
  variant.carried = {parse_carried(annotations, kKeyCarriedManifest),
                     parse_carried(annotations, kKeyCarriedConfig)};
  return variant;
}

Index parse_index(std::string_view bytes, std::string_view subject, CarriedTexts texts) {
  const Json json = parse_json(
      texts == CarriedTexts::kRead ? bytes : without_strings(bytes, kCarriedTexts), subject);
  check_readable(annotations_of(json), kAnnotationKeys, subject);
  const JsonView document(json, std::string(subject));
  expect_schema(document, kMediaTypeIndex, kArtifactTypeIndex);
  const JsonView annotations = document.at("annotations");
  Index index{.name = parse_package_name(annotations.at(kKeyKernel)),
              .version = parse_version_annotation(annotations.at(kKeyVersion)),
              .requires_ = parse_needed_loader(annotations, kAnnotationKeys),
              .variants = {},
              .summary = parse_note(annotations, kKeySummary),
              .license = parse_note(annotations, kKeyLicense)};
  std::set<std::string> ids;
  for (const JsonView& descriptor : document.at("manifests").items()) {
    Variant variant = parse_variant(descriptor);
    if (variant.id.empty()) continue;
    if (!ids.insert(variant.id).second) {
      descriptor.fail("is the second variant with the id " + variant.id);
    }
    index.variants.push_back(std::move(variant));
  }
  return index;
}

std::string serialize_index(const Index& index) {
  Json manifests = Json::array();
  for (const Variant& variant : index.variants) manifests.push_back(variant_descriptor(variant));
  Json annotations = {{kKeyKernel, index.name},
                      {kKeyVersion, std::to_string(index.version)},
                      {kAnnotationKeys.min_loader, index.requires_.min_loader},
                      {kAnnotationKeys.abi, std::to_string(index.requires_.abi)}};
  if (!index.summary.empty()) annotations[kKeySummary] = index.summary;
  if (!index.license.empty()) annotations[kKeyLicense] = index.license;
  return dump_json({{"schemaVersion", 2},
                    {"mediaType", kMediaTypeIndex},
                    {"artifactType", kArtifactTypeIndex},
                    {"annotations", std::move(annotations)},
                    {"manifests", std::move(manifests)}});
}

VariantManifest parse_manifest(std::string_view bytes, std::string_view subject) {
  const Json json = parse_json(bytes, subject);
  check_readable(annotations_of(json), kAnnotationKeys, subject);
  const JsonView document(json, std::string(subject));
  expect_schema(document, kMediaTypeManifest, kArtifactTypeVariant);
  VariantManifest manifest;
  manifest.config = parse_document_descriptor(document.at("config"), kMediaTypeConfig);

  const std::vector<JsonView> layers = document.at("layers").items();
  if (layers.empty() || layers.size() > 2) {
    document.at("layers").fail("found " + std::to_string(layers.size()) +
                               " layers, expected 1, and perhaps a dev layer");
  }
  manifest.layer = parse_layer(layers[0], manifest.unpacked_size);
  if (layers.size() == 1) return manifest;
  expect(layers[1].at("annotations").at(kKeyLayer), kDevLayer);
  manifest.dev = parse_layer(layers[1], manifest.dev_unpacked_size);
  if (!manifest.has_dev()) layers[1].at("size").fail("found 0 bytes, expected an archive");
  return manifest;
}

std::string serialize_manifest(const VariantManifest& manifest, std::string_view title) {
  const std::string name(title);
  Json layers = Json::array({layer_json(manifest.layer, manifest.unpacked_size, name)});
  if (manifest.has_dev()) {
    Json dev = layer_json(manifest.dev, manifest.dev_unpacked_size, "dev-" + name);
    dev["annotations"][kKeyLayer] = kDevLayer;
    layers.push_back(std::move(dev));
  }
  return dump_json({{"schemaVersion", 2},
                    {"mediaType", kMediaTypeManifest},
                    {"artifactType", kArtifactTypeVariant},
                    {"config", to_json(manifest.config)},
                    {"layers", std::move(layers)}});
}

}  // namespace kiln
