// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/schema/choices.hpp"

#include <algorithm>
#include <set>
#include <variant>
#include <vector>

#include "base/quote.hpp"
#include "build-matrix/schema/schema.hpp"
#include "documents/choices.hpp"
#include "documents/json.hpp"
#include "documents/ops.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

[[noreturn]] void fail(const std::string& found) {
  throw Error(ErrorCode::kBuild, found);
}

bool has_variants(const Package& package, Device::Kind device) {
  const bool on_cpu = device == Device::Kind::kCpu;
  const auto is_for = [&](const Binary& binary) { return binary.targets.empty() == on_cpu; };
  return (on_cpu ? package.cpu.present() : package.cuda.present()) ||
         std::ranges::any_of(package.binaries, is_for);
}

/// A word that would be timed against itself: at most one of those that no launch names, the
/// default among them, is a kernel of its own.
void check_told_apart(const OfferedOp& offered, const AttributeSchema& attribute,
                      const std::set<std::string>& told) {
  if (attribute.type != AttributeSchema::Type::kString) return;
  if (attribute.values.empty()) {
    fail(attribute.name + " is a text, which no launch is given: list its \"values\"");
  }
  std::vector<std::string> words = {std::get<std::string>(attribute.fallback)};
  words.insert(words.end(), offered.parts.front().begin(), offered.parts.front().end());
  std::erase_if(words, [&](const std::string& word) { return told.contains(word); });
  if (words.size() < 2) return;
  fail("parts of " + offered.op + " have " + quote(words[1]) + ", which runs what " +
       quote(words[0]) + " does: no \"when\" and no constant of a launch names either");
}

void check_launches(const OfferedOp& offered, const OpSchema& op, const Package& package) {
  const auto attribute =
      std::ranges::find(op.attributes, offered.attribute, &AttributeSchema::name);
  std::set<std::string> told;
  for (const Launch& launch : package.cuda.launch.launches) {
    if (launch.op != op.name) continue;
    told.merge(words_told(launch, op, *attribute));
  }
  check_told_apart(offered, *attribute, told);
}

void check_op(const OfferedOp& offered, const Package& package) {
  const auto op = std::ranges::find(package.ops, offered.op, &OpSchema::name);
  if (op == package.ops.end()) fail("the package has no op " + quote(offered.op));
  if (!has_variants(package, offered.device)) {
    const bool on_cpu = offered.device == Device::Kind::kCpu;
    fail(offered.op + " is offered on " + (on_cpu ? "cpu" : "cuda") +
         ", for which the package has no variants");
  }
  const Json text = parse_json(op->text, offered.op);
  check_offered(offered, read_layout(JsonView(text, offered.op)));
  if (offered.device == Device::Kind::kCuda && package.cuda.launches()) {
    check_launches(offered, *op, package);
  }
}

}  // namespace

void check_choices(std::string_view text, const Package& package, const std::string& file) {
  std::vector<OfferedOp> all;
  try {
    all = parse_choices(text, file);
  } catch (const Error& error) {
    fail(error.what());  // the reader speaks of integrity: to kiln tune it is a downloaded document
  }
  for (const OfferedOp& offered : all) {
    try {
      check_op(offered, package);
    } catch (const Error& error) {
      fail(file + ": " + error.what());
    }
  }
}

}  // namespace kiln::build
