// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/variant_order.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "kiln/error.hpp"

namespace kiln::registry {
namespace {

/// Smaller is better; no suffix comes last.
auto code_key(const DeviceCode& code) {
  return std::tuple(code.kind == DeviceCode::Kind::kPtx, std::string_view("af").find(code.suffix),
                    -code.capability.major, -code.capability.minor);
}

auto variant_key(const Variant& variant) {
  const Needs& needs = variant.needs;
  const Version toolkit = needs.toolkit.value_or(Version{});
  const DeviceCode code =
      needs.device_code.empty() ? DeviceCode{} : std::ranges::min(needs.device_code, {}, code_key);
  return std::tuple(needs.is_cpu(), -toolkit.major, -toolkit.minor, code_key(code), needs.cpu.arch,
                    -needs.cpu.level, variant.id);
}

std::optional<std::string> tie(const Needs& left, const Needs& right) {
  if (left.cpu != right.cpu || left.toolkit != right.toolkit) return std::nullopt;
  if (left.is_cpu()) return "a CPU of " + to_string(left.cpu);
  for (const DeviceCode& code : left.device_code) {
    if (std::ranges::find(right.device_code, code) == right.device_code.end()) continue;
    return to_string(code) + " of CUDA " + to_string(*left.toolkit) + " for " + to_string(left.cpu);
  }
  return std::nullopt;
}

}  // namespace

bool better(const Variant& left, const Variant& right) {
  return variant_key(left) < variant_key(right);
}

void check_distinct(const std::vector<Variant>& variants, std::string_view subject) {
  const std::string where = "publish " + std::string(subject) + ": ";
  for (std::size_t i = 0; i < variants.size(); ++i) {
    for (std::size_t j = i + 1; j < variants.size(); ++j) {
      const Variant& left = variants[i];
      const Variant& right = variants[j];
      if (left.id == right.id) {
        throw Error(ErrorCode::kConflict, where + "variant " + left.id + " is there twice, as " +
                                              left.manifest.digest.str() + " and " +
                                              right.manifest.digest.str() +
                                              "; nothing was written. Publish one of them");
      }
      if (const auto common = tie(left.needs, right.needs)) {
        throw Error(ErrorCode::kConflict,
                    where + "variants " + left.id + " and " + right.id +
                        " are equally good, both hold code for " + *common +
                        "; expected one for each machine; nothing was written. Leave one out");
      }
    }
  }
}

}  // namespace kiln::registry
