// SPDX-License-Identifier: Apache-2.0
#include "documents/choices.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <variant>

#include "base/join.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "documents/facts.hpp"
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
    if (offered.parts.back().empty()) part.fail("is empty");
    if (offered.parts.back().size() > kMostChoices) part.fail("has more than 1024 choices");
  }
  if (offered.parts.empty()) view.at("parts").fail("is empty");
  if (offered.parts.size() > kMostParts) view.at("parts").fail("is more than 4");
  for (const auto& [dtype, bound] : view.at("within").members()) {
    // At 1 outputs that are all 0 would do.
    const double most = bound.json().is_number() ? bound.json().get<double>() : -1;
    if (most < 0 || most >= 1) bound.fail("is no number from 0 to less than 1");
    offered.within.emplace(dtype, most);
  }
  if (offered.within.empty()) view.at("within").fail("names no dtype");
  return offered;
}

[[noreturn]] void fail(const std::string& found) {
  throw Error(ErrorCode::kIntegrity, found);
}

const OpLayout::Attribute& attribute_of(const OpLayout& op, const std::string& name) {
  const auto found = std::ranges::find(op.attributes, name, &OpLayout::Attribute::name);
  if (found == op.attributes.end()) fail(op.name + " has no attribute " + quote(name));
  return *found;
}

void check_any(const OfferedOp& offered, const OpLayout& op) {
  std::set<std::string> seen;
  for (const std::string& name : offered.any) {
    attribute_of(op, name);
    if (name == offered.attribute) fail(quote(name) + ", the choice, cannot be among \"any\"");
    if (!seen.insert(name).second) fail("any of " + op.name + " has " + quote(name) + " twice");
  }
}

void check_words(const OfferedOp& offered, const OpLayout::Attribute& attribute) {
  const std::string subject = "parts of " + offered.op;
  const auto* const text = std::get_if<std::string>(&attribute.fallback);
  const auto* const number = std::get_if<std::int64_t>(&attribute.fallback);
  if (text == nullptr && number == nullptr) {
    fail(attribute.name + " is a float, expected a string or an int");
  }
  const std::string own = text != nullptr ? *text : std::to_string(*number);
  const std::vector<std::string>& values = attribute.values;
  if (offered.parts.size() > 1 && (text == nullptr || !values.empty())) {
    fail(subject + " are " + std::to_string(offered.parts.size()) + " lists; a value of " +
         attribute.name + " is one word");
  }
  std::set<std::string> seen;
  for (const std::vector<std::string>& part : offered.parts) {
    for (const std::string& word : part) {
      const std::string has = subject + " have " + quote(word);
      if (text == nullptr && !parse_decimal(word, INT32_MAX)) fail(has + ", which is no int");
      if (!values.empty() && std::ranges::find(values, word) == values.end()) {
        fail(has + ", not one of the values of " + attribute.name + ": " + join(values));
      }
      // The package's own choice is timed anyway, and a word left out leaves its part to it.
      if (word.empty() || word == own) fail(has + ", which leaves the choice to the package");
      if (!seen.insert(word).second) fail(has + " twice");
    }
  }
}

void check_dtypes(const OfferedOp& offered, const OpLayout& op) {
  const auto first = std::ranges::find(op.tensors, false, &OpLayout::Tensor::optional);
  if (first == op.tensors.end()) fail(op.name + " has no tensor that all calls have");
  for (const auto& [dtype, bound] : offered.within) {
    if (std::ranges::find(first->dtypes, dtype) == first->dtypes.end()) {
      fail("within of " + op.name + " names " + quote(dtype) + "; " + first->name + " can be " +
           join(first->dtypes));
    }
    for (const OpLayout::Tensor& tensor : op.tensors) {
      const std::string why = tensor.optional ? "" : why_not_timed(tensor, dtype);
      if (!why.empty()) fail(why);
    }
  }
}

}  // namespace

std::vector<OfferedOp> parse_choices(std::string_view text, const std::string& subject) {
  const Json json = parse_json(text, subject);
  const JsonView view(json, subject);
  check_schema(view, kChoicesSchema, "");
  view.expect_members({"schema", "ops"});
  std::vector<OfferedOp> ops;
  for (const JsonView& view_of_op : view.at("ops").items()) {
    OfferedOp op = parse_offered(view_of_op);
    const auto same = [&](const OfferedOp& other) {
      return other.op == op.op && other.device == op.device;
    };
    if (std::ranges::any_of(ops, same)) view_of_op.fail("is a second entry of " + quote(op.op));
    ops.push_back(std::move(op));
  }
  if (ops.empty()) view.at("ops").fail("is empty");
  return ops;
}

void check_offered(const OfferedOp& offered, const OpLayout& op) {
  if (op.tensors.size() > kMostTunedTensors || op.attributes.size() > kMostTunedAttributes) {
    fail(op.name + " has more arguments than a tuned op can have");
  }
  check_any(offered, op);
  check_words(offered, attribute_of(op, offered.attribute));
  check_dtypes(offered, op);
}

std::string why_not_timed(const OpLayout::Tensor& tensor, const std::string& dtype) {
  constexpr std::array<std::string_view, 4> kTimed = {"bfloat16", "float16", "float32", "float64"};
  const std::string& found = dtype_of(tensor, dtype);
  if (std::ranges::find(kTimed, found) == kTimed.end()) {
    return tensor.name + " is " + found +
           ", expected bfloat16, float16, float32 or float64: kiln tune makes up inputs and "
           "compares outputs of these alone";
  }
  if (!tensor.inout) return "";
  return tensor.name +
         " is written where it is read: kiln tune needs the same values for each call";
}

}  // namespace kiln
