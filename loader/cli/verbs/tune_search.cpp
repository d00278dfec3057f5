// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/verbs/tune_search.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "http/retry.hpp"

namespace kiln::cli {
namespace {

constexpr double kGlanceSeconds = 3e-4;  // of one choice in a round
constexpr double kLook = 1e-3;
constexpr double kDecide = 3e-3;
constexpr int kGlances = 3;  // rounds
constexpr int kLooks = 5;
constexpr int kDecisions = 11;
constexpr std::size_t kFinalists = 8;
constexpr double kNear = 1.2;         // times the fastest right one: what is looked at again
constexpr double kMostSlower = 1.01;  // at any point of a range

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Of few rounds: what interrupts one of them, or its first call alone, only makes it longer.
double least_of(std::vector<double> values) {
  return std::ranges::min(values);
}

/// One shape, at all of its points.
class Search {
 public:
  Search(const OfferedOp& offered, const TimedOp& timed, const Shape& shape, std::stop_token stop)
      : offered_(offered), stop_(std::move(stop)), found_{.row = {}, .tried = 0, .wrong = {}} {
    for (const auto& point : points_of(shape)) points_.emplace_back(timed, point);
    found_.row = {.dtype = timed.dtype, .with = timed.with, .extents = shape, .choice = ""};
    bound_ = offered.within.at(timed.dtype);
  }

  Found run(std::uint64_t least_percent) {
    takes("");  // throws where the package has no kernel for the shape at all
    std::vector<std::string> words(offered_.parts.size());
    for (std::size_t part = 0; part < words.size(); ++part) words[part] = best_word(part, words);
    decide(text_of(words), 1 + static_cast<double>(least_percent) / 100);
    return std::move(found_);
  }

 private:
  static std::string text_of(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) {
      if (!word.empty()) text += (text.empty() ? "" : " ") + word;
    }
    return text;
  }

  bool takes(const std::string& choice) {
    return std::ranges::all_of(points_, [&](TimedCalls& calls) { return calls.takes(choice); });
  }

  /// By point, the seconds of each round.
  using Samples = std::vector<std::vector<double>>;

  /// All of them in each round, in an order that is drawn anew.
  std::map<std::string, Samples> time(std::vector<std::string> choices, int rounds,
                                      double at_least) {
    std::map<std::string, Samples> samples;
    for (const std::string& choice : choices) samples[choice].resize(points_.size());
    for (int round = 0; round < rounds; ++round) {
      std::ranges::shuffle(choices, random_);
      for (const std::string& choice : choices) {
        if (stop_.stop_requested()) fail_cancelled("tune");
        for (std::size_t i = 0; i < points_.size(); ++i) {
          samples[choice][i].push_back(points_[i].seconds(choice, at_least));
        }
      }
    }
    return samples;
  }

  using Typical = double (*)(std::vector<double>);

  /// The geometric mean over the points of what is typical of the rounds.
  static double cost_of(const Samples& samples, Typical typical = median_of) {
    double sum = 0;
    for (const std::vector<double>& each : samples) sum += std::log(typical(each));
    return std::exp(sum / static_cast<double>(samples.size()));
  }

  /// With what each takes, the fastest first.
  std::vector<std::pair<double, std::string>> by_time(const std::vector<std::string>& choices,
                                                      int rounds, double at_least,
                                                      Typical typical = median_of) {
    std::vector<std::pair<double, std::string>> sorted;
    for (const auto& [choice, samples] : time(choices, rounds, at_least)) {
      sorted.emplace_back(cost_of(samples, typical), choice);
    }
    std::ranges::sort(sorted);
    return sorted;
  }

  /// The fastest few that compute the right values: one that does not sets no measure for others.
  std::vector<std::string> finalists(const std::vector<std::string>& choices) {
    std::vector<std::string> fast;
    double most = 0;
    for (const auto& [cost, choice] : by_time(choices, kGlances, kGlanceSeconds, least_of)) {
      if (fast.size() == kFinalists || (!fast.empty() && cost > most)) break;
      if (!is_right(choice)) {
        found_.wrong.push_back(choice);
        continue;
      }
      if (fast.empty()) most = cost * kNear;
      fast.push_back(choice);
    }
    return fast;
  }

  bool is_right(const std::string& choice) {
    for (TimedCalls& calls : points_) {
      if (!choice.empty() && calls.distance(choice) > bound_) return false;
    }
    return true;
  }

  /// The fastest word of a part, the other parts as they are; empty: none.
  std::string best_word(std::size_t part, std::vector<std::string> words) {
    std::map<std::string, std::string> word_of;  // by the whole choice
    std::vector<std::string> choices;
    std::vector<std::string> all = offered_.parts[part];
    all.emplace_back();
    for (const std::string& word : all) {
      words[part] = word;
      std::string choice = text_of(words);
      if (stop_.stop_requested()) fail_cancelled("tune");
      if (word_of.contains(choice) || !takes(choice)) continue;
      word_of.emplace(choice, word);
      choices.push_back(std::move(choice));
    }
    found_.tried += choices.size() - 1;
    std::vector<std::string> fast = finalists(choices);
    words[part].clear();
    if (std::ranges::find(fast, text_of(words)) == fast.end()) fast.push_back(text_of(words));
    return word_of.at(by_time(fast, kLooks, kLook).front().second);
  }

  /// The package's own choice beside the best one, timed anew: who was the fastest of many in a few
  /// rounds was lucky as well.
  void decide(const std::string& best, double least) {
    auto samples =
        time(best.empty() ? std::vector<std::string>{""} : std::vector<std::string>{"", best},
             kDecisions, kDecide);
    const double own = cost_of(samples[""]);
    constexpr double kMicro = 1e6;
    found_.row.own_us = found_.row.best_us = own * kMicro;
    if (best.empty()) return;
    const double cost = cost_of(samples[best]);
    if (own < cost * least) return;
    for (std::size_t i = 0; i < points_.size(); ++i) {
      if (median_of(samples[best][i]) > median_of(samples[""][i]) * kMostSlower) return;
    }
    found_.row.choice = best;
    found_.row.best_us = cost * kMicro;
  }

  const OfferedOp& offered_;
  std::stop_token stop_;
  std::vector<TimedCalls> points_;
  std::mt19937 random_{20261127};  // a fixed order: two runs differ by the machine alone
  double bound_ = 0;
  Found found_;
};

}  // namespace

Found find_fastest(const OfferedOp& offered, const TimedOp& timed, const Shape& shape,
                   std::uint64_t least_percent, const std::stop_token& stop) {
  return Search(offered, timed, shape, stop).run(least_percent);
}

}  // namespace kiln::cli
