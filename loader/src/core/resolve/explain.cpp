// SPDX-License-Identifier: Apache-2.0
#include "resolve/explain.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/quote.hpp"
#include "documents/names.hpp"
#include "documents/variant.hpp"
#include "kiln/error.hpp"
#include "resolve/hint.hpp"
#include "resolve/rules.hpp"

namespace kiln {

namespace {

constexpr std::size_t kMaxRows = 100;
constexpr std::size_t kMaxVariantWidth = 40;
constexpr std::size_t kRuleWidth = 14;  // of the longest word of a Refusal

std::string describe_gpu(const Gpu& gpu) {
  std::string text;
  if (!gpu.name.empty()) text.append(" ").append(gpu.name);
  return text.append(" (").append(to_string(gpu.capability)).append(")");
}

std::string describe_host(const Resolution& resolution) {
  const Host& host = resolution.host;
  std::string text = host.origin.empty() ? "host: " : "host of " + host.origin + ": ";
  text += std::string(to_string(host.arch)) + ", CPU " + to_string(host.cpu);
  text += host.glibc ? ", glibc " + to_string(*host.glibc) : ", no glibc";
  if (host.gpus_asked) {
    const bool told = host.driver_problem.empty();
    const std::string version = host.driver_version.empty() ? "" : host.driver_version + " with ";
    text += host.driver ? ", driver " + version + "CUDA " + to_string(*host.driver)
            : told      ? ", no NVIDIA driver"
                        : ", an NVIDIA driver";
    text += ", ";
    text += !host.gpus.empty() ? describe_gpus(host.gpus) : told ? "no GPU" : "GPUs not known";
  } else {
    text += ", GPUs not looked at";
  }
  text +=
      "; for " + (resolution.all_gpus ? std::string("every GPU") : to_string(resolution.device));
  for (std::size_t i = 0; i < host.overridden.size(); ++i) {
    text += (i == 0 ? "; overridden: " : " ") + host.overridden[i];
  }
  return text;
}

std::string verdict(const Resolution& resolution, std::size_t row) {
  if (row == resolution.chosen) return "chosen";
  const Decision& decision = resolution.decisions[row];
  return decision.accepted() ? "fits" : std::string(to_string(decision.refusal));
}

std::vector<std::size_t> best_first(const Resolution& resolution) {
  std::vector<std::size_t> rows(resolution.decisions.size());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  std::stable_sort(rows.begin(), rows.end(), [&](std::size_t left, std::size_t right) {
    return resolution.decisions[left].rank < resolution.decisions[right].rank;
  });
  return rows;
}

/// Why `better` stands before `row`.
std::string compare(const Resolution& resolution, const Index& index, const Question& question,
                    std::size_t better, std::size_t row) {
  const auto rank = [&](std::size_t i) {
    const Variant& variant = index.variants[i];
    return rank_of(variant, best_fit(variant, question), resolution.decisions[i].refusal);
  };
  return "after " + resolution.decisions[better].variant + ": " +
         std::string(describe(deciding_rule(rank(better), rank(row))));
}

/// A line of the table: one variant, or several that were refused for the same reason.
struct Row {
  std::size_t first = 0;  ///< the best of them, a position in the index
  std::size_t count = 1;
  std::string label;
  std::string verdict;
};

/// Two of one reason keep their names.
std::vector<Row> fold(const Resolution& resolution, const std::vector<std::size_t>& best_first) {
  constexpr std::size_t kFewest = 3;
  const auto reason = [&](std::size_t position) {
    const Decision& decision = resolution.decisions[position];
    return std::tie(decision.refusal, decision.detail);
  };
  std::map<std::tuple<const Refusal&, const std::string&>, std::size_t> counts;
  for (const std::size_t position : best_first) ++counts[reason(position)];
  std::vector<Row> rows;
  for (const std::size_t position : best_first) {
    std::size_t& count = counts[reason(position)];
    if (count == 0) continue;  // in the row of the first
    const Decision& decision = resolution.decisions[position];
    Row row{position, 1, decision.variant, verdict(resolution, position)};
    if (!decision.accepted() && count >= kFewest) {
      row.count = std::exchange(count, 0);
      row.label += " and " + std::to_string(row.count - 1) + " more";
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

void pad(std::string& text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
}

}  // namespace

std::string describe_gpus(const std::vector<Gpu>& gpus) {
  std::string text;
  for (std::size_t first = 0; first < gpus.size();) {
    const std::string what = describe_gpu(gpus[first]);
    std::size_t last = first;
    while (last + 1 < gpus.size() && describe_gpu(gpus[last + 1]) == what &&
           gpus[last + 1].ordinal == gpus[last].ordinal + 1) {
      ++last;
    }
    text += (text.empty() ? "GPU " : ", GPU ") + std::to_string(gpus[first].ordinal);
    if (last != first) text.append("-").append(std::to_string(gpus[last].ordinal));
    text += what;
    first = last + 1;
  }
  return text;
}

std::string Resolution::explain() const {
  std::vector<Row> rows = fold(*this, best_first(*this));
  const std::size_t hidden = rows.size() > kMaxRows ? rows.size() - kMaxRows : 0;
  rows.resize(rows.size() - hidden);

  std::size_t variant_width = 0;
  std::size_t verdict_width = 0;
  for (const Row& row : rows) {
    variant_width = std::max(variant_width, row.label.size());
    verdict_width = std::max(verdict_width, row.verdict.size());
  }
  variant_width = std::min(variant_width, kMaxVariantWidth);

  std::string text = describe_host(*this);
  bool folded = false;
  for (const Row& row : rows) {
    std::string line = (row.first == chosen ? "> " : "  ") + row.label;
    pad(line, 2 + variant_width);
    line += "  " + row.verdict;
    pad(line, 2 + variant_width + 2 + verdict_width);
    text += "\n" + line + "  " + decisions[row.first].detail;
    folded = folded || row.count > 1;
  }
  if (hidden != 0) text += "\n  and " + std::to_string(hidden) + " more";
  if (folded)
    text += "\n  'kiln resolve " + label(name, version) + " --explain' shows each of them";
  if (!tuned.empty()) text += "\ntuned: " + tuned;
  return text;
}

std::string Explanation::text() const {
  std::string text = variant + ": " + verdict + ", rank " + std::to_string(rank);
  if (!ranked.empty()) text += ", " + ranked;
  for (const RuleOutcome& outcome : rules) {
    std::string line = "  " + std::string(to_string(outcome.rule));
    pad(line, 2 + kRuleWidth);
    text += "\n" + line +
            (!outcome.holds  ? "  NO   "
             : outcome.asked ? "  yes  "
                             : "  -    ") +
            outcome.detail;
  }
  return text;
}

std::vector<Explanation> explain(const Resolution& resolution, const Index& index,
                                 const Selection& selection, std::string_view variant) {
  const Question question = ask(resolution.host, index, selection);
  const std::vector<std::size_t> rows = best_first(resolution);
  std::vector<Explanation> explanations;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Variant& each = index.variants.at(rows[i]);
    if (!variant.empty() && each.id != variant) continue;
    Explanation explanation{
        .variant = each.id, .rank = i + 1, .verdict = verdict(resolution, rows[i])};
    const Fit fit = best_fit(each, question);
    for (const Rule& rule : kRules) {
      const bool holds = rule.holds(each, fit, question);
      explanation.rules.push_back({rule.refusal, holds, rule.describe(each, fit, question),
                                   is_asked(rule.refusal, each, question)});
      if (!holds && !each.unread.empty()) break;  // what else it needs is not known
    }
    if (i > 0) explanation.ranked = compare(resolution, index, question, rows[i - 1], rows[i]);
    explanations.push_back(std::move(explanation));
  }
  if (!variant.empty() && explanations.empty()) {
    const std::string package = label(index.name, index.version);
    throw Error(ErrorCode::kUsage, "explain " + quote(variant) + ": " + package +
                                       " has no such variant. 'kiln resolve " + package +
                                       "' lists those it has");
  }
  return explanations;
}

}  // namespace kiln
