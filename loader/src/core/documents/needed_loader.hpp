// SPDX-License-Identifier: Apache-2.0
//
// NeededLoader: which Kiln can read a document. Looked at before anything else in it, and without
// minding the types of the rest: a document of the future must say "upgrade", not "parse error".
// Between json and manifest. Pure.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "documents/json_fwd.hpp"

namespace kiln {

/// The loader that can read it: checked before anything else in a document.
struct NeededLoader {
  std::string min_loader = "0.1.0";  ///< lowest Kiln version
  int abi = 1;                       ///< KILN_ABI_MAJOR of the library inside
};

/// Where a document states its Requires: annotations in an index, plain members in a config.
struct NeededLoaderKeys {
  std::string_view min_loader;
  std::string_view abi;
};
inline constexpr NeededLoaderKeys kAnnotationKeys{"dev.kiln.min-loader", "dev.kiln.abi"};
inline constexpr NeededLoaderKeys kConfigKeys{"min_loader", "abi"};

/// "0.1.0" as numbers; missing parts are 0, and what follows '-' or '+' does not count.
std::optional<std::array<int, 3>> parse_loader_version(std::string_view text);

/// Whether this Kiln is older than `min_loader`. Text that is not a version needs nothing.
bool needs_newer_loader(std::string_view min_loader);

/// "needs kiln >= 7.0.0, this is kiln 0.1.0": why this Kiln is too old for what `stated` asks.
/// Empty if it is not. Members that are missing or of another type ask for nothing.
std::string too_new(const Json& stated, const NeededLoaderKeys& keys);

/// Throws kUpgrade if there is such a reason.
void check_readable(const Json& stated, const NeededLoaderKeys& keys, std::string_view subject);

/// The same members, strictly. Throws kIntegrity.
NeededLoader parse_needed_loader(const JsonView& stated, const NeededLoaderKeys& keys);

/// The same members, as far as they can be read.
NeededLoader guess_needed_loader(const Json& stated, const NeededLoaderKeys& keys);

}  // namespace kiln
