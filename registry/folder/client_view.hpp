// SPDX-License-Identifier: Apache-2.0
//
// ClientView: what a client that trusts the first root makes of a registry folder's signed
// metadata: its own refresh and list, on this folder. Under check and list, for the
// registry's keeper. Reads only; what has expired is told and not refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trust/updater.hpp"

namespace kiln::registry {

/// A document, and until when it holds.
struct RoleState {
  std::string role;
  std::uint64_t version = 0;
  std::int64_t expires = 0;  ///< seconds since 1970
};

struct ClientView {
  std::vector<RoleState> roles;      ///< root, timestamp, snapshot, targets, then publishers
  trust::Listed listed;              ///< names, and whose names are not known
  std::vector<Advisory> advisories;  ///< of all roles, the lifted ones too
};

/// Nothing for an unsigned folder. Throws as a client's refresh does, but for what has expired.
std::optional<ClientView> view_as_client(const std::filesystem::path& registry);

/// "timestamp 7 holds until 2026-12-10T00:00:00Z, 13 days more"; "… expired at …, 2 days ago".
std::string describe(const RoleState& role, std::int64_t now);

/// How it is renewed: "kiln registry sign --registry DIR --key …".
std::string how_to_renew(const RoleState& role, const std::filesystem::path& registry);

}  // namespace kiln::registry
