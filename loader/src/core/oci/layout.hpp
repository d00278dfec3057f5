// SPDX-License-Identifier: Apache-2.0
//
// Layout: the two documents of an OCI image layout that name everything else in it. Written
// by registry and bundle, read where a folder or a bundle is the registry. Pure.
//
//   oci-layout    the version of the layout
//   index.json    one descriptor a tag; without a tag: what some tools list besides, and an index
//                 that a later publish replaced, which lock files may still pin by its digest
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "documents/descriptor.hpp"

namespace kiln {

/// The bytes of the file oci-layout.
std::string serialize_layout_marker();

/// Throws kIntegrity for a layout of another version, or for another file.
void check_layout_marker(std::string_view bytes, std::string_view subject);

struct Tag {
  std::string name;  ///< empty: a descriptor without a tag
  Descriptor descriptor;
  std::string registry = {};  ///< of a bundle: where the version comes from; empty: not said
  bool operator==(const Tag&) const = default;
};

/// kLeftOut to read what others wrote: a descriptor without a tag may be of any kind.
enum class Untagged { kLeftOut, kKept };

/// What index.json names, in its order. kIntegrity, naming `subject`, for a tag that stands there
/// twice: which one is meant nobody can say.
std::vector<Tag> parse_layout_index(std::string_view bytes, std::string_view subject,
                                    Untagged untagged = Untagged::kLeftOut);

std::string serialize_layout_index(const std::vector<Tag>& tags);

}  // namespace kiln
