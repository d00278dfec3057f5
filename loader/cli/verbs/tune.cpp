// SPDX-License-Identifier: Apache-2.0
//
// kiln tune: which of the kernels that a package offers is the fastest on this machine, at the
// shapes that a user has; and the table of it that get_kernel takes (install/tuned.hpp).
//
// Each part of a choice is searched with the others as they are: all of its words are timed for a
// glance, the fast ones longer, those that compute something else are left out. What is best then
// has to beat the package's own choice in rounds of their own, in which the two take turns.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <utility>

#include "base/join.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "call/load.hpp"
#include "call/table.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "http/retry.hpp"
#include "install/install.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/tune_choices.hpp"
#include "loader/cli/verbs/tune_timing.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "probe/driver.hpp"

namespace kiln::cli {
namespace {

constexpr double kGlance = 3e-4;  // seconds of one choice in a round
constexpr double kLook = 1e-3;
constexpr double kDecide = 3e-3;
constexpr int kGlances = 2;  // rounds
constexpr int kLooks = 5;
constexpr int kDecisions = 11;
constexpr std::size_t kFinalists = 8;
constexpr double kNear = 1.2;         // times the fastest right one: what is looked at again
constexpr double kMostSlower = 1.01;  // at any point of a range
constexpr std::size_t kMaxShapesBytes = std::size_t{1} << 20;

struct TuneRequest {
  std::vector<std::string> shapes;
  std::filesystem::path shapes_file;
  std::string op;
  std::string dtype;
  std::vector<std::string> with;
  std::uint64_t least = 3;  ///< percent
  bool forget = false;
};

/// What became of one shape.
struct Found {
  TunedRow row;
  std::size_t tried = 0;           ///< choices that the package takes there
  std::vector<std::string> wrong;  ///< those that computed something else
};

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
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

  /// The geometric mean over the points.
  static double cost_of(const Samples& samples) {
    double sum = 0;
    for (const std::vector<double>& each : samples) sum += std::log(median_of(each));
    return std::exp(sum / static_cast<double>(samples.size()));
  }

  /// With what each takes, the fastest first.
  std::vector<std::pair<double, std::string>> by_time(const std::vector<std::string>& choices,
                                                      int rounds, double at_least) {
    std::vector<std::pair<double, std::string>> sorted;
    for (const auto& [choice, samples] : time(choices, rounds, at_least)) {
      sorted.emplace_back(cost_of(samples), choice);
    }
    std::ranges::sort(sorted);
    return sorted;
  }

  /// The fastest few that compute the right values: one that does not sets no measure for others.
  std::vector<std::string> finalists(const std::vector<std::string>& choices) {
    std::vector<std::string> fast;
    double most = 0;
    for (const auto& [cost, choice] : by_time(choices, kGlances, kGlance)) {
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

std::vector<OfferedOp> offered_by(Install& install, const std::string& subject) {
  const std::string none = "tune " + subject + ": the version offers no choices. Its own stand";
  DevFiles dev;
  try {
    dev = install.run_dev();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    throw Error(ErrorCode::kNotFound, none);
  }
  if (std::ranges::find(dev.files, kChoicesFile, &ArchiveFile::path) == dev.files.end()) {
    throw Error(ErrorCode::kNotFound, none);
  }
  return parse_choices(read_dev_file(install.cache(), dev, kChoicesFile), "choices of " + subject);
}

const OfferedOp& offered_op(const std::vector<OfferedOp>& all, const std::string& name,
                            Device device, const std::string& subject) {
  std::vector<std::string> names;
  for (const OfferedOp& each : all) {
    if (each.device != device.kind) continue;
    if (name.empty() || each.op == name) return each;
    names.push_back(each.op);
  }
  throw Error(ErrorCode::kNotFound,
              "tune " + subject + ": the version offers no choices " +
                  (names.empty() ? "on " + to_string(device) + ". Its own stand"
                                 : "of " + quote(name) + ". It does of: " + join(names)));
}

TimedOp timed_op(const kiln_package& table, const OfferedOp& offered, Device device,
                 const TuneRequest& asked, const std::string& subject) {
  TimedOp timed{.layout = {}, .device = device, .dtype = asked.dtype, .with = asked.with};
  for (std::uint32_t i = 0; i < table.op_count; ++i) {
    if (op_at(table, i).name == offered.op) timed.op = &op_at(table, i);
  }
  const auto broken = [&](const std::string& found) {
    throw Error(ErrorCode::kIntegrity, "tune " + subject + ": its " + kChoicesFile + " names " +
                                           found + ", which is not there. Tell its publisher");
  };
  if (timed.op == nullptr) broken("op " + quote(offered.op));
  const Json schema = parse_json(timed.op->schema, "the schema of an op");
  timed.layout = read_layout(JsonView(schema, "the schema of an op"));
  const auto& attributes = timed.layout.attributes;
  const auto at = std::ranges::find(attributes, offered.attribute, &OpLayout::Attribute::name);
  if (at == attributes.end()) broken("attribute " + quote(offered.attribute));
  timed.attribute = static_cast<std::size_t>(at - attributes.begin());
  for (const std::string& name : timed.with) {
    const auto& tensors = timed.layout.tensors;
    const auto found = std::ranges::find(tensors, name, &OpLayout::Tensor::name);
    if (found != tensors.end() && found->optional) continue;
    throw Error(ErrorCode::kUsage,
                "tune " + subject + ": " + offered.op + " has no optional tensor " + quote(name));
  }
  std::ranges::sort(timed.with);
  for (const std::string& each : timed.layout.tensors.front().dtypes) {
    if (timed.dtype.empty() && offered.within.contains(each)) timed.dtype = each;
  }
  if (!offered.within.contains(timed.dtype)) {
    std::vector<std::string> known;
    for (const auto& [dtype, bound] : offered.within) known.push_back(dtype);
    throw Error(ErrorCode::kUsage, "tune " + subject + ": " + offered.op +
                                       " offers no choices in " + quote(timed.dtype) + ", but in " +
                                       join(known));
  }
  return timed;
}

std::vector<Shape> shapes_asked(const TuneRequest& asked, const TimedOp& timed) {
  const std::vector<std::string> symbols = symbols_of(timed.layout, timed.with);
  std::vector<Shape> shapes;
  for (const std::string& text : asked.shapes) shapes.push_back(parse_shape(text, symbols));
  if (!asked.shapes_file.empty()) {
    const NamedFile file = read_named_file(asked.shapes_file, kMaxShapesBytes, Pipes::kRead);
    if (!file.problem.empty()) {
      throw Error(ErrorCode::kUsage,
                  "--shapes " + asked.shapes_file.string() + ": " + file.problem);
    }
    for (const std::string_view line : split(file.text, '\n')) {
      shapes.push_back(parse_shape(line, symbols));
    }
  }
  if (!shapes.empty()) return shapes;
  throw Error(ErrorCode::kUsage, "tune " + timed.layout.name +
                                     ": no shape is named. Say --shape with each of " +
                                     join(symbols) + ", such as M=128 or M=129-256");
}

/// Beside the rows that were there; a row of the same calls takes the place of the earlier one.
void add(TunedTable& table, const OfferedOp& offered, std::vector<TunedRow> rows) {
  auto at = std::ranges::find(table.ops, offered.op, &TunedOp::name);
  if (at == table.ops.end())
    at = table.ops.insert(at, {.name = offered.op, .attribute = "", .any = {}, .rows = {}});
  if (at->attribute != offered.attribute || at->any != offered.any) {
    *at = {offered.op, offered.attribute, offered.any, {}};
  }
  std::erase_if(at->rows, [&](const TunedRow& old) {
    return std::ranges::any_of(rows,
                               [&](const TunedRow& row) { return row.is_of_same_calls(old); });
  });
  at->rows.insert(at->rows.begin(), std::make_move_iterator(rows.begin()),
                  std::make_move_iterator(rows.end()));
}

void print_found(const Found& found) {
  const TunedRow& row = found.row;
  print("%-36s %10.1f us  %10.1f us  %5.2f  %s\n", to_text(row.extents).c_str(), row.own_us,
        row.best_us, row.own_us / row.best_us, row.choice.empty() ? "its own" : row.choice.c_str());
  for (const std::string& wrong : found.wrong) {
    print("  left out, its values differ by more than the package promises: %s\n", wrong.c_str());
  }
}

int forget(const Choice& choice) {
  const std::filesystem::path file = tuned_path(choice.resolution, choice.variant());
  std::error_code error;
  const bool removed = !file.empty() && std::filesystem::remove(file, error);
  if (error) {
    throw Error(ErrorCode::kCache,
                "remove " + file.string() + ": " + error.message() + ". Remove it by hand");
  }
  if (removed)
    print("removed %s: programs that start from now on take the package's own kernels\n",
          file.c_str());
  if (!removed) print("there is no tuned table of this variant\n");
  print_json("tune", {{"file", file.string()}, {"removed", removed}, {"shapes", Json::array()}});
  return 0;
}

const kiln_package& loaded(Installed& installed, const Request& request) {
  const Package& package = installed.package;
  const Device device = installed.choice.resolution.device;
  const kiln_package& table =
      load_library(package.library, package.config, package.subject,
                   chosen_load_mode(request.load_mode), std::move(installed.lease));
  const std::string problem = device.kind == Device::Kind::kCuda ? start_cuda() : "";
  if (!problem.empty()) throw Error(ErrorCode::kDevice, "tune " + package.subject + ": " + problem);
  kiln_error error{};
  const std::int32_t status = table.prepare(dl_device(device), &error);
  if (status != KILN_OK) {
    const ErrorCode code = failure_of(status, error);
    throw Error(code, "tune " + package.subject + ": prepare: " + error.text);
  }
  return table;
}

int run_tune(const Options& options, const TuneRequest& asked) {
  const Spec& spec = options.specs.front();
  const Request request = options.request_for(spec);
  Install install(spec.name, request);
  if (asked.forget) return forget(install.choose());
  Installed installed = install.run();
  const std::string subject = installed.package.subject;
  const Resolution& resolution = installed.choice.resolution;
  const Variant& variant = installed.package.variant;
  const Tuned before =
      read_tuned(resolution, variant);  // a broken table is told of before the work
  const std::vector<OfferedOp> all = offered_by(install, subject);
  const OfferedOp& offered = offered_op(all, asked.op, resolution.device, subject);
  const kiln_package& table = loaded(installed, request);
  const TimedOp timed = timed_op(table, offered, resolution.device, asked, subject);
  const std::vector<Shape> shapes = shapes_asked(asked, timed);

  TunedTable tuned = new_table(resolution, variant);
  print("%s %s %s on %s\n", subject.c_str(), offered.op.c_str(), timed.dtype.c_str(),
        tuned.hardware.c_str());
  print("%-36s %13s  %13s  %5s  %s\n", "shape", "its own", "best", "times", "choice");
  Json printed = Json::array();
  std::vector<TunedRow> rows;
  for (const Shape& shape : shapes) {
    Found found = Search(offered, timed, shape, request.stop).run(asked.least);
    print_found(found);
    Json one = to_json(found.row);
    one["tried"] = found.tried;
    one["wrong"] = found.wrong;
    printed.push_back(std::move(one));
    rows.push_back(std::move(found.row));
  }
  if (before.table) tuned.ops = before.table->ops;
  add(tuned, offered, std::move(rows));
  const std::filesystem::path file = keep_tuned(tuned);
  print(
      "%zu of %zu shapes take another kernel in programs that start from now on; the table is %s\n",
      tuned.choices(), tuned.rows(), file.c_str());
  print_json("tune", {{"name", resolution.name},
                      {"version", resolution.version},
                      {"variant", variant.id},
                      {"device", to_string(resolution.device)},
                      {"hardware", tuned.hardware},
                      {"op", offered.op},
                      {"attribute", offered.attribute},
                      {"least_percent", asked.least},
                      {"file", file.string()},
                      {"removed", false},
                      {"shapes", std::move(printed)}});
  return 0;
}

}  // namespace

void tune(KernelCommand& command) {
  command.takes_package();
  command.takes_choice();
  command.takes_lock();
  command.takes_cache();
  const auto asked = std::make_shared<TuneRequest>();
  constexpr std::uint64_t kMostPercent = 100;
  command.option("--shape", asked->shapes, "EXTENTS",
                 "Calls to time, as M=129-256,D=1024,H=4096; repeatable");
  command.option("--shapes", asked->shapes_file, "FILE", "A file with one such shape a line");
  command.option("--op", asked->op, "OP", "Which op; default the first that has choices");
  command.option("--dtype", asked->dtype, "DTYPE", "Of the op's tensors; default the first of its");
  command.option("--with", asked->with, "TENSOR", "An optional tensor that calls have; repeatable");
  command.number("--least", asked->least, 0, kMostPercent,
                 "Percent that a choice must be faster by; default 3");
  command.flag("--forget", asked->forget, "Remove the table: the package's own kernels again");
  command.example("geglu-mlp@1 --shape M=129-256,D=4096,H=14336",
                  "the widths of a layer, and the batches it gets");
  command.example("geglu-mlp@1 --shapes shapes.txt --dtype float16", "a shape a line");
  command.example("geglu-mlp@1 --forget", "its own kernels again");
  command.runs([asked](const Options& options) { return run_tune(options, *asked); });
}

}  // namespace kiln::cli
