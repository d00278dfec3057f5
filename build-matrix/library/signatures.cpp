// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/library/signatures.hpp"

#include <kiln/abi.h>

#include <cstddef>

#include "build-matrix/schema/spelling.hpp"
#include "documents/json.hpp"
#include "documents/ops.hpp"
#include "kiln/error.hpp"
#include "kiln/op.hpp"

namespace kiln::build {
namespace {

/// From an op's pointer to its name to another field.
constexpr std::uint64_t from_name(std::size_t offset) {
  return offset - offsetof(kiln_op, name);
}

}  // namespace

void check_signatures(const ElfLibrary& library, std::string_view package,
                      std::vector<std::string>& violations) {
  // An op is found by its shape: a name, a schema that has it, and two functions.
  for (const auto& [place, target] : library.pointers) {
    const auto schema = library.pointers.find(place + from_name(offsetof(kiln_op, schema)));
    if (schema == library.pointers.end() ||
        !library.pointers.contains(place + from_name(offsetof(kiln_op, workspace_bytes))) ||
        !library.pointers.contains(place + from_name(offsetof(kiln_op, run)))) {
      continue;
    }
    const std::string_view name = library.text_at(target);
    const std::string_view text = library.text_at(schema->second);
    if (name.empty() || !text.starts_with('{')) continue;
    try {
      const Json json = parse_json(text, "its schema");
      const JsonView op(json, "its schema");
      if (op.string_or("name", "") != name) continue;
      const std::uint64_t expected = signature_hash(signature_text(package, op));
      const std::uint64_t found =
          library.number_at<std::uint64_t>(place + from_name(offsetof(kiln_op, signature)));
      if (found == expected) continue;
      violations.push_back("op " + std::string(name) + " states the signature " +
                           hash_literal(found) + ", its schema has " + hash_literal(expected));
    } catch (const Error& error) {
      violations.push_back("op " + std::string(name) + ": " + error.what());
    }
  }
}

}  // namespace kiln::build
