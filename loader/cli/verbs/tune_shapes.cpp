// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/verbs/tune_shapes.hpp"

#include <algorithm>
#include <optional>

#include "base/join.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "kiln/error.hpp"

namespace kiln::cli {
namespace {

constexpr std::uint64_t kMostExtent = std::uint64_t{1} << 31;

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
                "read shape " + quote(text) + ": " + found +
                    (symbols.empty() ? ". Leave --shape out" : ". Write it as " + example));
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
    if (!range) {
      fail(symbol + " is neither a number from 1 to " + std::to_string(kMostExtent) +
           ", without leading zeros, nor a range of two");
    }
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
