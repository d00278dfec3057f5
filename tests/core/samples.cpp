// SPDX-License-Identifier: Apache-2.0
#include "samples.hpp"

#include <utility>

#include "base/join.hpp"

namespace kiln::test {

namespace {

Descriptor descriptor_of(std::string_view media_type, std::string_view content) {
  return {std::string(media_type), Digest::of(content), 936};
}

template <class Value>
std::string word(const std::optional<Value>& value) {
  return value ? to_string(*value) : "-";
}

std::string word(const Descriptor& descriptor) {
  return descriptor.media_type + " " + descriptor.digest.str() + " " +
         std::to_string(descriptor.size);
}

std::string word(const NeededLoader& requires_) {
  return requires_.min_loader + " abi " + std::to_string(requires_.abi);
}

}  // namespace

Needs gpu_needs(std::string_view toolkit, std::string_view min_driver,
                const std::vector<std::string>& code, std::string_view cpu) {
  Needs needs = cpu_needs(cpu);
  needs.toolkit = parse_version(toolkit).value();
  needs.min_driver = parse_version(min_driver).value();
  for (const std::string& text : code) needs.device_code.push_back(parse_device_code(text).value());
  return needs;
}

Needs cpu_needs(std::string_view cpu) {
  return {.cpu = parse_cpu_level(cpu).value(), .glibc = {2, 17}};
}

Variant variant_of(std::string id, Needs needs) {
  return {.manifest = descriptor_of(kMediaTypeManifest, id),
          .id = std::move(id),
          .needs = std::move(needs),
          .tested = "untested"};
}

Index index_of(std::vector<Variant> variants) {
  return {.name = "geglu-mlp", .version = 1, .variants = std::move(variants)};
}

Index sample_index() {
  Needs with_library = gpu_needs("12.9", "12.0", {"sm_80", "sm_90", "compute_80"});
  with_library.libraries = {"libcublas.so.12", "libcublasLt.so.12"};
  Index index = index_of({variant_of("cu12.9-sm_90a-x86_64", gpu_needs("12.9", "12.0", {"sm_90a"})),
                          variant_of("cu12.9-compute_80-x86_64", with_library),
                          variant_of("cpu-armv8-a", cpu_needs("armv8-a"))});
  index.variants[0].tested = "NVIDIA H200, driver 580.159.04, 2026-11-21, 412 cases";
  index.variants[0].tested_on = {"NVIDIA H100 80GB HBM3", "NVIDIA H200"};
  return index;
}

VariantManifest sample_manifest() {
  return {.config = descriptor_of(kMediaTypeConfig, "config"),
          .layer = descriptor_of(kMediaTypeLayer, "layer"),
          .unpacked_size = 123456};
}

Config sample_config() {
  return {.name = "geglu-mlp",
          .version = 1,
          .variant = "cu12.9-sm_90a-x86_64",
          .needs = gpu_needs("12.9", "12.0", {"sm_90a"}),
          .files = {{"LICENSE", Digest::of("license"), 7},
                    {"lib/libgeglu_mlp.so", Digest::of("library"), 100000}},
          .library = "lib/libgeglu_mlp.so",
          .symbol = "kiln_package_v1",
          .build_id = "3f9c2a",
          .build = R"({"host":"zig 0.15.2","source":"sha256:00"})"};
}

std::string fields(const Needs& needs) {
  std::string text = std::string(to_string(needs.cpu.arch)) + " " + to_string(needs.cpu) + " " +
                     to_string(needs.glibc) + " " + word(needs.toolkit) + " " +
                     word(needs.min_driver);
  for (const DeviceCode& code : needs.device_code) text.append(" ").append(to_string(code));
  for (const std::string& library : needs.libraries) text.append(" ").append(library);
  return text;
}

std::string fields(const Variant& variant) {
  return variant.id + "; " + word(variant.manifest) + "; " + word(variant.requires_) + "; " +
         fields(variant.needs) + "; " + variant.tested + "; " + join(variant.tested_on) + "; " +
         variant.unread;
}

std::string fields(const Index& index) {
  std::string text = index.name + "@" + std::to_string(index.version) + " " + word(index.requires_);
  for (const Variant& variant : index.variants) text.append("\n").append(fields(variant));
  return text;
}

std::string fields(const Config& config) {
  std::string text = config.name + "@" + std::to_string(config.version) + " " + config.variant +
                     "; " + word(config.requires_) + "; " + fields(config.needs) + "; " +
                     config.library + " " + config.symbol + " " + config.build_id + " " +
                     config.build;
  for (const ArchiveFile& file : config.files) {
    text += "\n" + file.path + " " + file.digest.str() + " " + std::to_string(file.size);
  }
  return text;
}

Host gpu_host(std::string_view driver, std::string_view capability) {
  Host host = cpu_host();
  host.driver = parse_version(driver).value();
  host.gpus = {{0, "NVIDIA Test", parse_version(capability).value()}};
  return host;
}

Host cpu_host(std::string_view cpu) {
  const CpuLevel level = parse_cpu_level(cpu).value();
  return {.arch = level.arch, .cpu = level, .glibc = Version{2, 36}};
}

}  // namespace kiln::test
