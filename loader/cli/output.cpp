// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"
#include "documents/json.hpp"

#include <cstdio>
#include <string>
#include <utility>

namespace kiln::cli {
Json to_json(const Installed& installed) {
  return {{"name", installed.config.name},
          {"version", installed.config.version},
          {"variant", installed.variant.id},
          {"tested", installed.variant.tested},
          {"manifest", installed.variant.manifest.digest.str()},
          {"library", installed.library.string()},
          {"fallback", !installed.selected.refused.empty()},
          {"registry", installed.selected.registry},
          {"requests", installed.requests},
          {"bytes_fetched", installed.bytes_fetched}};
}

void print_json(std::string_view kind, Json document) {
  std::printf("%s\n", with_schema(kind, std::move(document)).dump(2).c_str());
}

}  // namespace kiln::cli
