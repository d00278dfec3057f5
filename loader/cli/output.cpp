// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include <cstdio>
#include <string>
#include <utility>

#include "documents/json.hpp"

namespace kiln::cli {

Json to_json(const Installed& installed) {
  return {{"name", installed.package.config.name},
          {"version", installed.package.config.version},
          {"variant", installed.package.variant.id},
          {"tested", installed.package.variant.tested},
          {"manifest", installed.package.variant.manifest.digest.str()},
          {"library", installed.package.library.string()},
          {"fallback", !installed.choice.refused.empty()},
          {"registry", installed.choice.registry},
          {"requests", installed.traffic.requests},
          {"bytes_fetched", installed.traffic.bytes}};
}

void print_json(std::string_view kind, Json document) {
  std::printf("%s\n", with_schema(kind, std::move(document)).dump(2).c_str());
}

}  // namespace kiln::cli
