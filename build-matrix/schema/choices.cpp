// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/schema/choices.hpp"

#include <algorithm>
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
