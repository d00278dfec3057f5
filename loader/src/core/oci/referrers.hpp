// SPDX-License-Identifier: Apache-2.0
//
// Referrers: OCI manifests that name another document as their subject and so hang on it, and how a
// registry lists those of one document. The registry writes them; store and
// attest read them. Pure.
//
//   manifest   artifactType, an empty config, layers; subject: the document's descriptor
//   list       an image index of such manifests: what GET …/referrers/<digest> answers, and what
//              the tag sha256-<hex> names where a registry does not know that request
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "documents/descriptor.hpp"

namespace kiln {

struct Referrer {
  Descriptor config;
  std::vector<Descriptor> layers;
  std::optional<Descriptor> subject;
};

/// Any image manifest. Throws kIntegrity for another document.
Referrer parse_referrer(std::string_view bytes, const std::string& subject);

/// An entry of a list.
struct ListedReferrer {
  Descriptor manifest;
  std::string artifact_type;  ///< as the list says; others' tools write the wrong one
  std::string annotations;    ///< as JSON text; empty: none
  bool operator==(const ListedReferrer&) const = default;
};
using ReferrerList = std::vector<ListedReferrer>;

/// Image manifests alone, in the list's order. Throws kIntegrity if it is not an image index.
ReferrerList parse_referrers(std::string_view bytes, const std::string& subject);
std::string serialize_referrers(const ReferrerList& list);

/// `before`, and what of `added` it lacks: nobody's entry is lost.
ReferrerList join_referrers(ReferrerList before, const ReferrerList& added);

/// One blob as a referrer.
struct MadeReferrer {
  std::string manifest;
  Descriptor config;  ///< of kEmptyConfig
  Descriptor layer;
  ListedReferrer listed;
};
inline constexpr std::string_view kEmptyConfig = "{}";
MadeReferrer make_referrer(const Descriptor& subject, std::string_view type, std::string_view blob,
                           const Json& annotations);

}  // namespace kiln
