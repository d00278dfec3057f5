// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/verbs/tune_choices.hpp"

#include <algorithm>
#include <optional>

#include "base/join.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"

namespace kiln::cli {
namespace {

constexpr std::string_view kChoicesSchema = "kiln.choices/1";
constexpr std::size_t kMostParts = 4;
constexpr std::size_t kMostChoices = 1024;  // of a part
constexpr std::uint64_t kMostExtent = std::uint64_t{1} << 31;

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

/// "128" or "129-256".
std::optional<TunedRow::Range> parse_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  const auto from = parse_decimal(text.substr(0, dash), kMostExtent);
  const auto to =
      dash == std::string_view::npos ? from : parse_decimal(text.substr(dash + 1), kMostExtent);
  if (!from || !to || *from < 1 || *to < *from) return std::nullopt;
  return TunedRow::Range{static_cast<std::int64_t>(*from), static_cast<std::int64_t>(*to)};
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

std::vector<std::string> symbols_of(const OpLayout& layout, const std::vector<std::string>& with) {
  std::vector<std::string> symbols;
  for (const OpLayout::Tensor& tensor : layout.tensors) {
    if (tensor.optional && std::ranges::find(with, tensor.name) == with.end()) continue;
    for (const std::string& extent : tensor.shape) {
      if (parse_decimal(extent, kMostExtent)) continue;
      if (std::ranges::find(symbols, extent) == symbols.end()) symbols.push_back(extent);
    }
  }
  return symbols;
}

Shape parse_shape(std::string_view text, const std::vector<std::string>& symbols) {
  const auto fail = [&](const std::string& found) {
    std::string example;
    for (const std::string& symbol : symbols) {
      example += (example.empty() ? "" : ",") + symbol + (example.empty() ? "=129-256" : "=1024");
    }
    throw Error(ErrorCode::kUsage,
                "read shape " + quote(text) + ": " + found + ". Write it as " + example);
  };
  Shape shape;
  for (const std::string_view word : split(text, ',')) {
    const std::size_t equals = word.find('=');
    const std::string symbol(word.substr(0, equals));
    if (std::ranges::find(symbols, symbol) == symbols.end()) {
      fail("the op has no extent " + quote(symbol));
    }
    const auto range =
        equals == std::string_view::npos ? std::nullopt : parse_range(word.substr(equals + 1));
    if (!range) fail(symbol + " is neither a number from 1 nor a range");
    if (!shape.emplace(symbol, *range).second) fail(symbol + " is named twice");
  }
  for (const std::string& symbol : symbols) {
    if (!shape.contains(symbol)) fail(symbol + " is missing");
  }
  return shape;
}

std::string to_text(const Shape& shape) {
  return join(shape, " ", [](const auto& each) {
    const auto& [symbol, range] = each;
    std::string text = symbol + "=" + std::to_string(range.from);
    if (range.to != range.from) text += "-" + std::to_string(range.to);
    return text;
  });
}

std::vector<std::map<std::string, std::int64_t>> points_of(const Shape& shape) {
  std::vector<std::map<std::string, std::int64_t>> points;
  for (const int place : {0, 1, 2}) {
    std::map<std::string, std::int64_t> point;
    for (const auto& [symbol, range] : shape) {
      point[symbol] = range.from + (range.to - range.from) * place / 2;
    }
    if (std::ranges::find(points, point) == points.end()) points.push_back(std::move(point));
  }
  return points;
}

}  // namespace kiln::cli
