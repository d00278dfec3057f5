// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/schema/choices.hpp"

#include <algorithm>
#include <vector>

#include "base/join.hpp"
#include "base/quote.hpp"
#include "build-matrix/schema/schema.hpp"
#include "documents/choices.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

[[noreturn]] void fail(const std::string& found) {
  throw Error(ErrorCode::kBuild, found);
}

std::vector<OfferedOp> parse(std::string_view text, const std::string& file) {
  try {
    return parse_choices(text, file);
  } catch (const Error& error) {
    fail(error.what());  // the reader speaks of integrity: to kiln tune it is a downloaded document
  }
}

}  // namespace

void check_choices(std::string_view text, const Package& package, const std::string& file) {
  for (const OfferedOp& offered : parse(text, file)) {
    const auto op = std::ranges::find(package.ops, offered.op, &OpSchema::name);
    if (op == package.ops.end()) fail(file + ": the package has no op " + quote(offered.op));
    const auto known = [&, &attributes = op->attributes](const std::string& name) {
      return std::ranges::find(attributes, name, &AttributeSchema::name);
    };
    std::vector<std::string> names = offered.any;
    names.push_back(offered.attribute);
    for (const std::string& name : names) {
      if (known(name) == op->attributes.end()) {
        fail(file + ": " + offered.op + " has no attribute " + quote(name));
      }
    }
    for (const auto& [dtype, bound] : offered.within) {
      if (is_dtype(dtype)) continue;
      fail(file + ": within of " + offered.op + " names " + quote(dtype) + ", which is no dtype");
    }
    const std::vector<std::string>& values = known(offered.attribute)->values;
    for (const std::vector<std::string>& part : offered.parts) {
      for (const std::string& word : part) {
        if (values.empty() || std::ranges::find(values, word) != values.end()) continue;
        fail(file + ": parts of " + offered.op + " have " + quote(word) +
             ", not one of the values of " + offered.attribute + ": " + join(values));
      }
    }
    if (known(offered.attribute)->type == AttributeSchema::Type::kFloat) {
      fail(file + ": " + offered.attribute + " is a float, expected a string or an int");
    }
  }
}

}  // namespace kiln::build
