// SPDX-License-Identifier: Apache-2.0
#include "documents/choices.hpp"

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

constexpr std::string_view kChoicesSchema = "kiln.choices/1";
constexpr std::size_t kMostParts = 4;
constexpr std::size_t kMostChoices = 1024;  // of a part

OfferedOp parse_offered(const JsonView& view) {
  view.expect_members({"op", "device", "attribute", "parts", "any", "within"});
  OfferedOp offered{.op = view.at("op").string(),
                    .attribute = view.at("attribute").string(),
                    .parts = {},
                    .any = view.has("any") ? view.at("any").strings() : std::vector<std::string>{},
                    .within = {}};
  const std::string device = view.at("device").string();
  if (device != "cpu" && device != "cuda") view.at("device").fail("is neither cpu nor cuda");
  offered.device = device == "cpu" ? Device::Kind::kCpu : Device::Kind::kCuda;
  for (const JsonView& part : view.at("parts").items()) {
    offered.parts.push_back(part.strings());
    if (offered.parts.back().size() > kMostChoices) part.fail("has more than 1024 choices");
  }
  if (offered.parts.size() > kMostParts) view.at("parts").fail("is more than 4");
  for (const auto& [dtype, bound] : view.at("within").members()) {
    if (!bound.json().is_number() || bound.json().get<double>() < 0) {
      bound.fail("is no number from 0");
    }
    offered.within.emplace(dtype, bound.json().get<double>());
  }
  if (offered.within.empty()) view.at("within").fail("names no dtype");
  return offered;
}

}  // namespace

std::vector<OfferedOp> parse_choices(std::string_view text, const std::string& subject) {
  const Json json = parse_json(text, subject);
  const JsonView view(json, subject);
  view.expect_members({"schema", "ops"});
  if (view.at("schema").string() != kChoicesSchema) {
    view.at("schema").fail("is " + quote(view.at("schema").string()) + ", expected " +
                           quote(kChoicesSchema));
  }
  std::vector<OfferedOp> ops;
  for (const JsonView& op : view.at("ops").items()) ops.push_back(parse_offered(op));
  return ops;
}

}  // namespace kiln
