// SPDX-License-Identifier: Apache-2.0
//
// Variant order: the publisher's order of the variants in an index, best first, because generic OCI
// tools take the first one that has their platform; and the rule that no two variants are equally
// good for one machine. Pure.
#pragma once

#include <vector>

#include "documents/variant.hpp"

namespace kiln::registry {

/// CUDA before CPU; then the newest toolkit; machine code before PTX; 'a' before 'f' before plain;
/// the highest capability; x86_64 before aarch64; the highest CPU level; last the id. Total.
bool better(const Variant& left, const Variant& right);

/// Throws kConflict if two variants have the same id, or would rank equal on some machine: same
/// CPU architecture and level, same toolkit, and a piece of device code in common (CPU variants:
/// the same level). Only the order of the index would decide between them.
void check_distinct(const std::vector<Variant>& variants, std::string_view subject);

}  // namespace kiln::registry
