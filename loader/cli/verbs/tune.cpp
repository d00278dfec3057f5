// SPDX-License-Identifier: Apache-2.0
//
// kiln tune: which of the kernels that a package offers is the fastest on this machine, at the
// shapes that a user has; and the table of it that get_kernel takes (install/tuned.hpp).
#include <algorithm>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "base/ascii.hpp"
#include "base/join.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "call/load.hpp"
#include "call/table.hpp"
#include "documents/choices.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "install/install.hpp"
#include "loader/cli/frame/cancel.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/tune_search.hpp"
#include "loader/cli/verbs/tune_shapes.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "probe/hardware.hpp"

namespace kiln::cli {
namespace {

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
  return parse_choices(read_dev_file(dev, kChoicesFile), "choices of " + subject);
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
    throw Error(ErrorCode::kIntegrity, "tune " + subject + ": its " + kChoicesFile + ": " + found +
                                           ". Tell its publisher");
  };
  if (timed.op == nullptr) broken("the package has no op " + quote(offered.op));
  const Json schema = parse_json(timed.op->schema, "the schema of an op");
  timed.layout = read_layout(JsonView(schema, "the schema of an op"));
  try {
    check_offered(offered, timed.layout);
  } catch (const Error& error) {
    broken(error.what());
  }
  const auto& attributes = timed.layout.attributes;
  const auto at = std::ranges::find(attributes, offered.attribute, &OpLayout::Attribute::name);
  timed.attribute = static_cast<std::size_t>(at - attributes.begin());
  const auto& tensors = timed.layout.tensors;
  for (const std::string& name : timed.with) {
    const auto found = std::ranges::find(tensors, name, &OpLayout::Tensor::name);
    if (found != tensors.end() && found->optional) continue;
    throw Error(ErrorCode::kUsage,
                "tune " + subject + ": " + offered.op + " has no optional tensor " + quote(name));
  }
  std::ranges::sort(timed.with);
  timed.with.erase(std::unique(timed.with.begin(), timed.with.end()), timed.with.end());
  for (const std::string& each :
       std::ranges::find(tensors, false, &OpLayout::Tensor::optional)->dtypes) {
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
      const std::string_view shape = trimmed(line);
      if (!shape.empty()) shapes.push_back(parse_shape(shape, symbols));
    }
  }
  if (shapes.empty() && symbols.empty()) return {Shape{}};  // all its calls are of one shape
  if (!shapes.empty()) return shapes;
  throw Error(ErrorCode::kUsage, "tune " + timed.layout.name +
                                     ": no shape is named. Say --shape with each of " +
                                     join(symbols) + ", such as M=128 or M=129-256");
}

/// Before the rows that were there: of two equally narrow ones it counts. One of the same calls
/// goes.
void add(TunedTable& table, const OfferedOp& offered, TunedRow row) {
  auto at = std::ranges::find(table.ops, offered.op, &TunedOp::name);
  if (at == table.ops.end()) at = table.ops.insert(at, TunedOp{.name = offered.op});
  if (at->attribute != offered.attribute || at->any != offered.any) {
    *at = {offered.op, offered.attribute, offered.any, {}};
  }
  std::erase_if(at->rows, [&](const TunedRow& old) { return row.is_of_same_calls(old); });
  at->rows.insert(at->rows.begin(), std::move(row));
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

int run_tune(const Options& options, const TuneRequest& asked) {
  const Spec& spec = options.specs.front();
  const Request request = options.request_for(spec);
  Install install(spec.name, request);
  if (asked.forget) return forget(install.choose());
  Installed installed = install.run();
  const std::string subject = installed.package.subject;
  const Resolution& resolution = installed.choice.resolution;
  const Variant& variant = installed.package.variant;
  read_tuned(resolution, variant);  // what would end the work is told of before it
  check_tuned_place(resolution, variant);
  const std::vector<OfferedOp> all = offered_by(install, subject);
  const OfferedOp& offered = offered_op(all, asked.op, resolution.device, subject);
  const kiln_package& table = load_prepared(installed, request.load_mode);
  const TimedOp timed = timed_op(table, offered, resolution.device, asked, subject);
  const std::vector<Shape> shapes = shapes_asked(asked, timed);

  print("%s %s %s on %s\n", subject.c_str(), offered.op.c_str(), timed.dtype.c_str(),
        hardware_name(resolution.host, resolution.device).c_str());
  print("%-36s %13s  %13s  %5s  %s\n", "shape", "its own", "best", "times", "choice");
  Json printed = Json::array();
  Tuned tuned;
  for (const Shape& shape : shapes) {
    Found found = find_fastest(offered, timed, shape, asked.least, request.stop);
    print_found(found);
    Json one = to_json(found.row);
    one["tried"] = found.tried;
    one["wrong"] = found.wrong;
    printed.push_back(std::move(one));
    // Each time: a long run may be cut off.
    tuned = update_tuned(resolution, variant,
                         {[&](TunedTable& kept) { add(kept, offered, std::move(found.row)); },
                          waiting_for_others(options.quiet, options.request.stop)});
  }
  print(
      "%zu of %zu shapes take another kernel in programs that start from now on; the table is %s\n",
      tuned.table->choices(), tuned.table->rows(), tuned.file.c_str());
  print_json("tune", {{"name", resolution.name},
                      {"version", resolution.version},
                      {"variant", variant.id},
                      {"device", to_string(resolution.device)},
                      {"hardware", tuned.table->hardware},
                      {"op", offered.op},
                      {"attribute", offered.attribute},
                      {"least_percent", asked.least},
                      {"file", tuned.file.string()},
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
  const std::vector<Option> of_calls = {
      command.option("--shape", asked->shapes, "EXTENTS",
                     "Calls to time, as M=129-256,D=1024,H=4096; repeatable"),
      command.option("--shapes", asked->shapes_file, "FILE", "A file with one such shape a line"),
      command.option("--op", asked->op, "OP", "Which op; default the first that has choices"),
      command.option("--dtype", asked->dtype, "DTYPE",
                     "Of the op's tensors; default the first of its"),
      command.option("--with", asked->with, "TENSOR",
                     "An optional tensor that calls have; repeatable"),
      command.number("--least", asked->least, 0, kMostPercent,
                     "Percent that a choice must be faster by; default 3")};
  Option forget =
      command.flag("--forget", asked->forget, "Remove the table: the package's own kernels again");
  for (const Option& each : of_calls) forget.not_with(each);
  command.example("geglu-mlp@1 --shape M=129-256,D=4096,H=14336",
                  "the widths of a layer, and the batches it gets");
  command.example("geglu-mlp@1 --shapes shapes.txt --dtype float16", "a shape a line");
  command.example("geglu-mlp@1 --forget", "its own kernels again");
  command.runs([asked](const Options& options) { return run_tune(options, *asked); });
}

}  // namespace kiln::cli
