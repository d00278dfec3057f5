// SPDX-License-Identifier: Apache-2.0
#include "call/tuned_ops.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/fork.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "call/table.hpp"
#include "documents/choices.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "documents/ops.hpp"
#include "install/tuned.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

constexpr std::size_t kMostOps = 64;  // tuned ones, of a process

/// One row, ready to be compared with a call.
struct PlacedRow {
  struct Extent {
    std::uint32_t tensor;
    std::int32_t dimension;
    std::int64_t from;
    std::int64_t to;
  };
  std::uint64_t present;           ///< tensors that the calls have, a bit each
  std::vector<DLDataType> dtypes;  ///< of each tensor of the op
  std::vector<Extent> extents;
  double width;        ///< how many shapes fall in it, as a logarithm: 64 bits do not hold it
  const char* choice;  ///< null: the package's own
  kiln_attribute value;
};

/// One op with its rows. Never freed: its entry of the table is in use until the process ends.
struct PlacedOp {
  const kiln_op* real = nullptr;
  std::uint32_t tensor_count = 0;
  std::uint32_t attribute = 0;  ///< the one whose values are the choices
  std::uint32_t any = 0;        ///< attributes whose value does not matter, a bit each
  std::vector<kiln_attribute> defaults = {};  ///< of all attributes
  std::vector<PlacedRow> rows = {};
  OpLayout layout = {};  ///< has the defaults' texts
  TunedOp tuned = {};    ///< has the choices' texts
};

bool is_default(const kiln_attribute& given, const kiln_attribute& fallback) {
  switch (given.kind) {
    case KILN_ATTRIBUTE_DEFAULT:
      return true;
    case KILN_ATTRIBUTE_INT:
      // An int may be given for a float.
      return fallback.kind == KILN_ATTRIBUTE_FLOAT
                 ? static_cast<double>(given.value.as_int) == fallback.value.as_float
                 : fallback.kind == given.kind && given.value.as_int == fallback.value.as_int;
    case KILN_ATTRIBUTE_FLOAT:
      return fallback.kind == given.kind && given.value.as_float == fallback.value.as_float;
    case KILN_ATTRIBUTE_STRING:
      return fallback.kind == given.kind && given.value.as_string != nullptr &&
             std::strcmp(given.value.as_string, fallback.value.as_string) == 0;
    default:
      return false;
  }
}

bool falls_in(const PlacedRow& row, const kiln_call& call) {
  for (const PlacedRow::Extent& extent : row.extents) {
    const DLTensor& tensor = *call.tensors[extent.tensor];
    if (tensor.ndim <= extent.dimension || tensor.shape == nullptr) return false;
    const std::int64_t found = tensor.shape[extent.dimension];
    if (found < extent.from || found > extent.to) return false;
  }
  for (std::uint32_t i = 0; i < call.tensor_count; ++i) {
    if (call.tensors[i] == nullptr) continue;
    const DLDataType& found = call.tensors[i]->dtype;
    if (found.code != row.dtypes[i].code || found.bits != row.dtypes[i].bits) return false;
  }
  return true;
}

/// The row of a call that leaves the choice to the package; null: it gave one, or there is none.
const PlacedRow* row_of(const PlacedOp& op, const kiln_call& call) {
  // A later caller's call may have fields that a copy of it would lose.
  if (call.struct_size > sizeof(kiln_call) || call.struct_size < KILN_CALL_FIRST_BYTES)
    return nullptr;
  if (call.tensor_count != op.tensor_count || call.attribute_count > op.defaults.size()) {
    return nullptr;
  }
  // What is wrong with a call is the package's to say.
  if (call.tensors == nullptr || (call.attribute_count > 0 && call.attributes == nullptr)) {
    return nullptr;
  }
  for (std::uint32_t i = 0; i < call.attribute_count; ++i) {
    const bool decides = (op.any >> i & 1) == 0;
    if (decides && !is_default(call.attributes[i], op.defaults[i])) return nullptr;
  }
  std::uint64_t present = 0;
  for (std::uint32_t i = 0; i < op.tensor_count; ++i) {
    present |= std::uint64_t{call.tensors[i] != nullptr} << i;
  }
  for (const PlacedRow& row : op.rows) {
    if (row.present == present && falls_in(row, call)) {
      return row.choice != nullptr ? &row : nullptr;
    }
  }
  return nullptr;
}

/// The call with a row's choice.
class ChosenCall {
 public:
  ChosenCall(const PlacedOp& op, const PlacedRow& row, const kiln_call& call) {
    std::memcpy(&call_, &call, std::min<std::size_t>(call.struct_size, sizeof call_));
    const std::uint32_t count = std::max(call.attribute_count, op.attribute + 1);
    std::copy_n(call.attributes, call.attribute_count, attributes_.begin());
    std::fill(attributes_.begin() + call.attribute_count, attributes_.begin() + count,
              kiln_attribute{});
    attributes_[op.attribute] = row.value;
    call_.attributes = attributes_.data();
    call_.attribute_count = count;
    error.text[0] = '\0';
  }
  ChosenCall(const ChosenCall&) = delete;
  ChosenCall& operator=(const ChosenCall&) = delete;

  const kiln_call* call() const { return &call_; }
  kiln_error error;  ///< of a try: the caller's own stays untouched by a call that succeeds

 private:
  kiln_call call_{};
  std::array<kiln_attribute, kMostTunedAttributes> attributes_;
};

/// Arguments that the package did not take, before it did anything.
bool is_refused(std::int32_t status) {
  return status == KILN_INVALID_ARGUMENT || status == KILN_UNSUPPORTED;
}

std::int32_t run_tuned(const PlacedOp& op, const kiln_call* call, kiln_error* error) {
  const PlacedRow* const row = row_of(op, *call);
  if (row == nullptr) return op.real->run(call, error);
  ChosenCall chosen(op, *row, *call);
  const std::int32_t status = op.real->run(chosen.call(), &chosen.error);
  if (is_refused(status)) return op.real->run(call, error);
  if (status != KILN_OK && error != nullptr) *error = chosen.error;
  return status;
}

/// Enough for both: which of the two runs is known when it runs.
std::int32_t tuned_workspace_bytes(const PlacedOp& op, const kiln_call* call, std::size_t* bytes,
                                   kiln_error* error) {
  const std::int32_t status = op.real->workspace_bytes(call, bytes, error);
  const PlacedRow* const row = status == KILN_OK ? row_of(op, *call) : nullptr;
  if (row == nullptr) return status;
  ChosenCall chosen(op, *row, *call);
  std::size_t needed = 0;
  if (op.real->workspace_bytes(chosen.call(), &needed, &chosen.error) == KILN_OK) {
    *bytes = std::max(*bytes, needed);
  }
  return status;
}

/// A function of C has no context: each tuned op has a place, and each place two functions.
std::array<const PlacedOp*, kMostOps> tuned_places{};

template <std::size_t kPlace>
std::int32_t run_at(const kiln_call* call, kiln_error* error) {
  return run_tuned(*tuned_places[kPlace], call, error);
}
template <std::size_t kPlace>
std::int32_t workspace_bytes_at(const kiln_call* call, std::size_t* bytes, kiln_error* error) {
  return tuned_workspace_bytes(*tuned_places[kPlace], call, bytes, error);
}

using Run = decltype(kiln_op::run);
using WorkspaceBytes = decltype(kiln_op::workspace_bytes);
template <std::size_t... kPlace>
std::pair<Run, WorkspaceBytes> functions_at(std::size_t place, std::index_sequence<kPlace...>) {
  static constexpr Run kRuns[] = {run_at<kPlace>...};
  static constexpr WorkspaceBytes kBytes[] = {workspace_bytes_at<kPlace>...};
  return {kRuns[place], kBytes[place]};
}

/// Makes rows of a table's texts. Throws kIntegrity with which of them the package does not have.
class TunedReader {
 public:
  TunedReader(const kiln_op& real, const TunedOp& tuned) {
    const Json schema = parse_json(real.schema, "the schema of an op");
    op_.real = &real;
    op_.layout = read_layout(JsonView(schema, "the schema of an op"));
    op_.tuned = tuned;
    op_.tensor_count = static_cast<std::uint32_t>(op_.layout.tensors.size());
  }

  PlacedOp read() && {
    const std::vector<OpLayout::Attribute>& attributes = op_.layout.attributes;
    if (op_.tensor_count > kMostTunedTensors || attributes.size() > kMostTunedAttributes) {
      fail("it has more arguments than a tuned op can have");
    }
    for (const OpLayout::Attribute& each : attributes)
      op_.defaults.push_back(value_of(each.fallback));
    op_.attribute = static_cast<std::uint32_t>(attribute(op_.tuned.attribute));
    for (const std::string& each : op_.tuned.any) op_.any |= std::uint32_t{1} << attribute(each);
    if ((op_.any >> op_.attribute & 1) != 0) {
      fail("its choice " + quote(op_.tuned.attribute) + " cannot be among \"any\"");
    }
    for (const TunedRow& row : op_.tuned.rows) op_.rows.push_back(read_row(row));
    // The first that a call falls in counts: one that was timed at fewer shapes is nearer to it.
    std::ranges::stable_sort(op_.rows, {}, [](const PlacedRow& row) { return row.width; });
    return std::move(op_);
  }

 private:
  [[noreturn]] void fail(const std::string& found) const {
    throw Error(ErrorCode::kIntegrity, op_.tuned.name + ": " + found);
  }

  std::size_t attribute(const std::string& name) const {
    const auto& all = op_.layout.attributes;
    const auto found = std::ranges::find(all, name, &OpLayout::Attribute::name);
    if (found == all.end()) fail("the op has no attribute " + quote(name));
    return static_cast<std::size_t>(found - all.begin());
  }

  std::size_t tensor(const std::string& name) const {
    const auto& all = op_.layout.tensors;
    const auto found = std::ranges::find(all, name, &OpLayout::Tensor::name);
    if (found == all.end() || !found->optional)
      fail("the op has no optional tensor " + quote(name));
    return static_cast<std::size_t>(found - all.begin());
  }

  static kiln_attribute value_of(const std::variant<std::string, std::int64_t, double>& value) {
    kiln_attribute made{};
    if (const auto* text = std::get_if<std::string>(&value)) {
      made.kind = KILN_ATTRIBUTE_STRING;
      made.value.as_string = text->c_str();
    } else if (const auto* number = std::get_if<std::int64_t>(&value)) {
      made.kind = KILN_ATTRIBUTE_INT;
      made.value.as_int = *number;
    } else {
      made.kind = KILN_ATTRIBUTE_FLOAT;
      made.value.as_float = std::get<double>(value);
    }
    return made;
  }

  PlacedRow read_row(const TunedRow& row) const {
    PlacedRow made{
        .present = 0, .dtypes = {}, .extents = {}, .width = 0, .choice = nullptr, .value = {}};
    if (!find_dtype(row.dtype)) fail(quote(row.dtype) + " is no dtype");
    for (std::size_t i = 0; i < op_.tensor_count; ++i) {
      const OpLayout::Tensor& each = op_.layout.tensors[i];
      made.present |= std::uint64_t{!each.optional} << i;
      made.dtypes.push_back(find_dtype(dtype_of(each, row.dtype)).value_or(DLDataType{}));
    }
    for (const std::string& each : row.with) made.present |= std::uint64_t{1} << tensor(each);
    for (const auto& [symbol, range] : row.extents) {
      made.extents.push_back(extent_of(symbol, made.present, range));
      made.width += std::log2(static_cast<double>(range.to - range.from) + 1);
    }
    // What most tells rows apart comes first: a layer's widths, which are one number each.
    std::ranges::stable_sort(made.extents, {},
                             [](const PlacedRow::Extent& each) { return each.to - each.from; });
    if (!row.choice.empty()) {
      made.choice = row.choice.c_str();
      made.value = choice_of(row.choice);
    }
    return made;
  }

  PlacedRow::Extent extent_of(const std::string& symbol, std::uint64_t present,
                              const TunedRow::Range& range) const {
    for (std::uint32_t i = 0; i < op_.tensor_count; ++i) {
      const std::vector<std::string>& shape = op_.layout.tensors[i].shape;
      const auto found = std::ranges::find(shape, symbol);
      if ((present >> i & 1) == 0 || found == shape.end()) continue;
      return {i, static_cast<std::int32_t>(found - shape.begin()), range.from, range.to};
    }
    fail("no tensor has an extent " + quote(symbol));
  }

  kiln_attribute choice_of(const std::string& choice) const {
    const OpLayout::Attribute& attribute = op_.layout.attributes[op_.attribute];
    kiln_attribute made = op_.defaults[op_.attribute];
    const auto& values = attribute.values;
    const bool is_known = values.empty() || std::ranges::find(values, choice) != values.end();
    if (made.kind == KILN_ATTRIBUTE_STRING && is_known) {
      made.value.as_string = choice.c_str();
      return made;
    }
    const auto number = parse_decimal(choice, INT32_MAX);
    if (made.kind != KILN_ATTRIBUTE_INT || !number) {
      fail(attribute.name + " cannot be " + quote(choice));
    }
    made.value.as_int = static_cast<std::int64_t>(*number);
    return made;
  }

  PlacedOp op_;
};

/// Of this process. Never destroyed.
struct TunedPackages {
  std::mutex mutex;
  std::map<std::pair<const kiln_package*, Digest>, std::unique_ptr<TableCopy>> copies;
  std::size_t taken = 0;  ///< places
};

TunedPackages& tuned_packages() {
  static auto* const instance = new TunedPackages;
  return *instance;
}

std::uint32_t position_of(const kiln_package& table, const std::string& name) {
  for (std::uint32_t i = 0; i < table.op_count; ++i) {
    if (op_at(table, i).name == name) return i;
  }
  throw Error(ErrorCode::kIntegrity, "the package has no op " + quote(name));
}

}  // namespace

const kiln_package* tuned_package(const kiln_package& table, const TunedTable& tuned,
                                  const std::string& file) {
  const NoFork whole;
  TunedPackages& all = tuned_packages();
  const std::scoped_lock held(all.mutex);
  std::string key;
  auto copy = std::make_unique<TableCopy>(table);
  std::vector<std::pair<std::uint32_t, std::unique_ptr<const PlacedOp>>> made;
  for (const TunedOp& op : tuned.ops) {
    key += op.name + "\n" + op.attribute;
    for (const std::string& each : op.any) key += "\n" + each;
    for (const TunedRow& row : op.rows) key += "\n" + dump_json(to_json(row));
    try {
      const std::uint32_t position = position_of(table, op.name);
      made.emplace_back(position, std::make_unique<const PlacedOp>(
                                      TunedReader(op_at(table, position), op).read()));
    } catch (const Error& error) {
      fail_tuned(file + ": " + error.what());
    }
  }
  if (tuned.choices() == 0) return &table;
  auto& known = all.copies[{&table, Digest::of(key)}];
  if (known != nullptr) return &known->package();
  if (all.taken + made.size() > kMostOps) {
    throw Error(ErrorCode::kUsage, "take tuned table " + file + ": this process has " +
                                       std::to_string(all.taken) + " tuned ops, the most is " +
                                       std::to_string(kMostOps) + ". Remove it");
  }
  for (auto& [position, op] : made) {
    const std::size_t place = all.taken++;
    const auto [run, bytes] = functions_at(place, std::make_index_sequence<kMostOps>());
    kiln_op& entry = copy->op(position);
    entry.run = run;
    entry.workspace_bytes = bytes;
    tuned_places[place] = op.release();
  }
  known = std::move(copy);
  return &known->package();
}

}  // namespace kiln
