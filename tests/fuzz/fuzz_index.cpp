// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as an index: refused by name, or an index that writes back and that resolve decides on.
#include "documents/manifest.hpp"

#include "documents/json.hpp"
#include "fuzz.hpp"
#include "resolve/resolve.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  static const Host host = [] {
    Host machine;
    machine.cpu = parse_cpu_level("x86-64-v3").value();
    machine.glibc = Version{2, 36};
    machine.driver = Version{12, 9};
    machine.gpus.push_back({.name = "GPU", .capability = {9, 0}});
    return machine;
  }();
  Index index;
  const bool read = fuzz::accepts({ErrorCode::kIntegrity, ErrorCode::kUpgrade}, [&] {
    index = parse_index(fuzz::text_of(data, size), "index x@1");
  });
  if (!read) return 0;
  fuzz::round_trip(
      serialize_index(index), [](const std::string& text) { return parse_index(text, "again"); },
      serialize_index);
  const Index left = parse_index(fuzz::text_of(data, size), "left", CarriedTexts::kLeft);
  fuzz::require(left.name == index.name && left.version == index.version &&
                    left.variants.size() == index.variants.size(),
                "read without the carried texts, it is the same index");
  for (std::size_t i = 0; i < index.variants.size(); ++i) {
    const Variant& one = index.variants[i];
    const Variant& other = left.variants[i];
    fuzz::require(other.id == one.id && other.manifest == one.manifest &&
                      other.unread.empty() == one.unread.empty(),
                  "with the same variants");
    if (!one.unread.empty()) continue;
    fuzz::require(variant_annotations(other) == variant_annotations(one), "that need the same");
  }
  const Resolution resolution = resolve(host, index, {});
  fuzz::require(resolution.decisions.size() == index.variants.size(), "a decision a variant");
  fuzz::require(!resolution.explain().empty(), "a decision is explained");
  return 0;
}
