// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/schema/schema.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "base/join.hpp"
#include "base/quote.hpp"
#include "build-matrix/schema/fields.hpp"
#include "build-matrix/schema/names.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

constexpr std::array<DTypeName, 12> kDTypes = {{
    {"float64", "kFloat64", 8},
    {"float32", "kFloat32", 4},
    {"float16", "kFloat16", 2},
    {"bfloat16", "kBFloat16", 2},
    {"float8_e4m3fn", "kFloat8E4M3FN", 1},
    {"float8_e5m2", "kFloat8E5M2", 1},
    {"int64", "kInt64", 8},
    {"int32", "kInt32", 4},
    {"int16", "kInt16", 2},
    {"int8", "kInt8", 1},
    {"uint8", "kUInt8", 1},
    {"bool", "kBool", 1},
}};

/// "float64, float32, …, bool"
std::string all_dtypes() {
  return join(kDTypes, ", ", [](const DTypeName& dtype) { return std::string(dtype.name); });
}

bool flag(const JsonView& object, std::string_view key) {
  return object.has(key) && object.at(key).boolean();
}

std::int32_t positive(const JsonView& value) {
  const std::uint64_t number = value.unsigned_integer();
  if (number == 0 || number > std::numeric_limits<std::int32_t>::max()) {
    value.fail("expected an integer from 1 to 2147483647");
  }
  return static_cast<std::int32_t>(number);
}

/// A name that becomes a C++ identifier.
std::string identifier(const JsonView& value) {
  std::string name = value.string();
  if (const std::string wrong = why_not_identifier(name); !wrong.empty()) {
    value.fail(quote(name) + " " + wrong);
  }
  return name;
}

/// Names that share one C++ scope: each may stand there once.
class Scope {
 public:
  explicit Scope(std::initializer_list<std::string_view> taken) {
    for (std::string_view name : taken) names_.emplace(name);
  }
  void add(const std::string& name, const JsonView& where) {
    if (!names_.insert(name).second) where.fail("the name " + name + " is already taken");
  }

 private:
  std::set<std::string> names_;
};

/// The members that every argument struct has already: see kiln/sdk/types.hpp, ops_header.hpp.
Scope argument_scope() {
  return Scope({"device", "workspace", "workspace_bytes", "stream", "threads", "attributes"});
}

std::string read_dtype(const JsonView& value) {
  return read_word(value, is_dtype, "is not a dtype; expected one of " + all_dtypes());
}

void parse_dtype(const JsonView& value, const std::vector<TensorSchema>& earlier,
                 TensorSchema& tensor) {
  if (value.json().is_array()) {
    tensor.dtypes = read_list(value, read_dtype);
    return;
  }
  const std::string word = value.string();
  if (is_dtype(word)) {
    tensor.dtypes = {word};
    return;
  }
  const auto other = std::ranges::find(earlier, word, &TensorSchema::name);
  if (other == earlier.end()) {
    value.fail(quote(word) + " is neither an earlier tensor nor a dtype: " + all_dtypes());
  }
  if (other->optional) value.fail(word + " is optional, so its dtype may be unknown");
  tensor.same_dtype_as = word;
}

std::vector<Extent> parse_shape(const JsonView& value) {
  std::vector<Extent> shape;
  for (const JsonView& item : value.items()) {
    Extent extent;
    if (item.json().is_string()) {
      extent.symbol = item.string();
      if (const std::string wrong = why_not_symbol(extent.symbol); !wrong.empty()) {
        item.fail(quote(extent.symbol) + " " + wrong);
      }
    } else {
      extent.value = positive(item);
    }
    shape.push_back(std::move(extent));
  }
  if (shape.size() > kMaxDimensions) {
    value.fail("has " + std::to_string(shape.size()) + " dimensions; at most " +
               std::to_string(kMaxDimensions) + " are supported");
  }
  return shape;
}

std::vector<std::string> parse_in_place(const JsonView& value,
                                        const std::vector<TensorSchema>& earlier,
                                        const TensorSchema& tensor) {
  if (!tensor.output && !tensor.inout) value.fail("is that of a tensor which the op only reads");
  std::vector<std::string> names;
  for (const JsonView& item : value.items()) {
    const std::string name = item.string();
    if (std::ranges::find(earlier, name, &TensorSchema::name) == earlier.end()) {
      item.fail(quote(name) + " is not an earlier tensor");
    }
    names.push_back(name);
  }
  return names;
}

TensorSchema parse_tensor(const JsonView& value, const std::vector<TensorSchema>& earlier) {
  check_keys(value, {"name", "dtype", "shape"},
             {"layout", "optional", "output", "inout", "in_place"});
  TensorSchema tensor;
  tensor.name = identifier(value.at("name"));
  if (is_dtype(tensor.name)) value.at("name").fail(tensor.name + " is the name of a dtype");
  parse_dtype(value.at("dtype"), earlier, tensor);
  tensor.shape = parse_shape(value.at("shape"));
  tensor.optional = flag(value, "optional");
  tensor.output = flag(value, "output");
  tensor.inout = flag(value, "inout");
  if (tensor.output && tensor.inout)
    value.at("inout").fail("is true beside output; expected one of them");
  if (value.has("in_place"))
    tensor.in_place = parse_in_place(value.at("in_place"), earlier, tensor);
  const std::string layout = value.string_or("layout", "compact");
  if (layout != "compact" && layout != "rows") {
    value.at("layout").fail(quote(layout) + " is not a layout; expected compact or rows");
  }
  if (layout == "rows") {
    tensor.layout = Layout::kRows;
    if (tensor.shape.size() < 2) value.at("layout").fail("rows need at least two dimensions");
  }
  return tensor;
}

void parse_tensors(const JsonView& value, Scope& scope, OpSchema& op) {
  for (const JsonView& item : non_empty(value)) {
    TensorSchema tensor = parse_tensor(item, op.tensors);
    scope.add(tensor.name, item.at("name"));
    for (const Extent& extent : tensor.shape) {
      if (extent.symbol.empty() ||
          std::ranges::find(op.symbols, extent.symbol) != op.symbols.end()) {
        continue;
      }
      scope.add(extent.symbol, item.at("shape"));
      op.symbols.push_back(extent.symbol);
    }
    op.tensors.push_back(std::move(tensor));
  }
  if (op.tensors.size() > kMaxTensors) value.fail("has more than 32 tensors");
  if (op.symbols.size() > kMaxSymbols) value.fail("has more than 32 symbols");
  if (std::ranges::none_of(op.tensors, [](const TensorSchema& t) { return t.output || t.inout; })) {
    value.fail("no tensor has \"output\" or \"inout\": true: the op writes nothing");
  }
  if (std::ranges::all_of(op.tensors, &TensorSchema::optional)) {
    value.fail("every tensor is optional, so a call may have no device: require one");
  }
  for (const std::string& symbol : op.symbols) {
    const bool bound = std::ranges::any_of(op.tensors, [&](const TensorSchema& tensor) {
      return !tensor.optional &&
             std::ranges::find(tensor.shape, symbol, &Extent::symbol) != tensor.shape.end();
    });
    if (!bound) {
      value.fail("only optional tensors have " + symbol +
                 ", so it may have no value: require one of them, in an op of its own");
    }
  }
}

void parse_values(const JsonView& value, AttributeSchema& attribute) {
  Scope enumerators({});
  for (const JsonView& item : non_empty(value)) {
    const std::string word = read_word(
        item, is_value_word, "is not a value; expected words of [a-z0-9] joined by - or _");
    enumerators.add(camel_case(word), item);
    attribute.values.push_back(word);
  }
}

AttributeSchema parse_attribute(const JsonView& value, Scope& scope) {
  AttributeSchema attribute;
  if (value.string_or("type", "") == "string") {
    check_keys(value, {"name", "type", "default"}, {"values"});
  } else {
    check_keys(value, {"name", "type", "default"});
  }
  attribute.name = identifier(value.at("name"));
  scope.add(attribute.name, value.at("name"));
  const std::string type = value.at("type").string();
  const JsonView fallback = value.at("default");
  if (type == "string") {
    scope.add(camel_case(attribute.name), value.at("name"));
    if (!value.has("values")) {
      if (!fallback.string().empty()) fallback.fail("expected \"\": a text has no other default");
      attribute.fallback = std::string();
      return attribute;
    }
    parse_values(value.at("values"), attribute);
    const auto is_value = [&](const std::string& word) {
      return std::ranges::find(attribute.values, word) != attribute.values.end();
    };
    attribute.fallback = read_word(fallback, is_value, "is not one of the values");
  } else if (type == "int") {
    attribute.type = AttributeSchema::Type::kInt;
    const Json& json = fallback.json();
    // -2^63 has no literal in C++; nobody needs it as a default.
    if (!json.is_number_integer() ||
        (json.is_number_unsigned() && json.get<std::uint64_t>() > (std::uint64_t{1} << 62)) ||
        json.get<std::int64_t>() == std::numeric_limits<std::int64_t>::min()) {
      fallback.fail("expected an integer of less than 63 bits");
    }
    attribute.fallback = json.get<std::int64_t>();
  } else if (type == "float") {
    attribute.type = AttributeSchema::Type::kFloat;
    if (!fallback.json().is_number()) fallback.fail("expected a number");
    attribute.fallback = fallback.json().get<double>();
  } else {
    value.at("type").fail(quote(type) + " is not a type; expected string, int or float");
  }
  return attribute;
}

OpSchema parse_op(const JsonView& value) {
  check_keys(value, {"name", "doc", "tensors"}, {"attributes"});
  OpSchema op;
  op.name = identifier(value.at("name"));
  op.doc = read_line(value.at("doc"));
  op.text = dump_json(value.json());
  Scope scope = argument_scope();
  scope.add(camel_case(op.name) + "Arguments", value.at("name"));
  parse_tensors(value.at("tensors"), scope, op);
  if (value.has("attributes")) {
    const JsonView attributes = value.at("attributes");
    for (const JsonView& item : attributes.items()) {
      op.attributes.push_back(parse_attribute(item, scope));
    }
    if (op.attributes.size() > kMaxAttributes) attributes.fail("has more than 16 attributes");
  }
  return op;
}

std::vector<std::string> parse_sources(const JsonView& value, std::string_view package) {
  return read_list(value,
                   [package](const JsonView& item) { return read_source(item, ".cpp", package); });
}

DeviceSource parse_device_source(const JsonView& value, std::string_view package) {
  check_keys(value, {"source", "targets"});
  DeviceSource device;
  const JsonView source = value.at("source");
  device.source = read_source(source, ".cu", package);
  device.stem = stem_of(device.source);
  if (const std::string wrong = why_not_identifier(device.stem); !wrong.empty()) {
    source.fail("the file name " + quote(device.stem) + " " + wrong);
  }
  device.targets = read_list(value.at("targets"), read_target);
  return device;
}

std::string parse_soname(const JsonView& value) {
  return read_word(
      value, [](const std::string& text) { return is_soname(soname_for(text, 12)); },
      "is not a soname; expected libcublasLt.so.12, libcublasLt.so.{cuda_major} and the like");
}

/// A soname alone, or one with the targets whose variants need it.
LibraryNeed parse_need(const JsonView& value, const CudaSection& earlier) {
  LibraryNeed need;
  if (value.json().is_string()) {
    need.soname = parse_soname(value);
  } else {
    check_keys(value, {"soname", "targets"});
    need.soname = parse_soname(value.at("soname"));
    need.targets = read_list(value.at("targets"), read_target);
  }
  for (const LibraryNeed& other : earlier.needs) {
    if (other.soname == need.soname) value.fail(need.soname + " is listed twice");
  }
  for (std::size_t i = 0; i < need.targets.size(); ++i) {
    const bool built = std::ranges::any_of(earlier.device, [&](const DeviceSource& device) {
      return std::ranges::find(device.targets, need.targets[i]) != device.targets.end();
    });
    if (!built) {
      value.at("targets").items()[i].fail("no device source has the target " +
                                          to_string(need.targets[i]));
    }
  }
  return need;
}

CudaSection parse_cuda(const JsonView& value, const std::vector<OpSchema>& ops,
                       std::string_view package) {
  if (value.has("launches")) {
    return {.host = {}, .device = {}, .needs = {}, .launch = parse_launches(value, ops, package)};
  }
  check_keys(value, {"host", "device"}, {"needs", "headers", "workspace_by_address"});
  CudaSection cuda;
  cuda.host = parse_sources(value.at("host"), package);
  Scope stems({});
  for (const JsonView& item : non_empty(value.at("device"))) {
    DeviceSource device = parse_device_source(item, package);
    stems.add(device.stem, item.at("source"));
    cuda.device.push_back(std::move(device));
  }
  if (value.has("needs")) {
    for (const JsonView& item : value.at("needs").items()) {
      cuda.needs.push_back(parse_need(item, cuda));
    }
  }
  if (value.has("headers")) cuda.headers = read_list(value.at("headers"), read_line);
  if (value.has("workspace_by_address")) {
    cuda.workspace_by_address =
        read_list(value.at("workspace_by_address"), [&](const JsonView& item) {
          std::string name = read_line(item);
          if (std::ranges::find(ops, name, &OpSchema::name) == ops.end()) {
            item.fail("there is no op " + name);
          }
          return name;
        });
  }
  return cuda;
}

CpuSection parse_cpu(const JsonView& value, std::string_view package) {
  check_keys(value, {"host", "levels"});
  CpuSection cpu;
  cpu.host = parse_sources(value.at("host"), package);
  cpu.levels = read_list(value.at("levels"), read_cpu_level);
  return cpu;
}

// They lie in one folder of the dev layer, and each is a name that Python imports.
std::vector<std::string> parse_python(const JsonView& value, std::string_view package) {
  Scope stems({});
  std::vector<std::string> paths = read_list(value, [&](const JsonView& item) {
    std::string path = read_source(item, ".py", package);
    const std::string stem = stem_of(path);
    if (const std::string wrong = why_not_identifier(stem); !wrong.empty()) {
      item.fail("the file name " + quote(stem) + " " + wrong);
    }
    stems.add(stem, item);
    return path;
  });
  const auto is_own = [&](const std::string& path) {
    return stem_of(path) == underscored(package);
  };
  if (std::ranges::none_of(paths, is_own)) {
    value.fail("none is named " + underscored(package) + ".py, by which the package is imported");
  }
  return paths;
}

void parse_identity(const JsonView& root, std::string_view folder, Package& package) {
  package.name = read_word(root.at("name"), is_package_name,
                           "is not a package name; expected words of [a-z0-9] joined by single -");
  if (package.name != folder) {
    root.at("name").fail("is " + quote(package.name) + "; expected " + quote(folder) +
                         ", the name of the folder");
  }
  package.version = positive(root.at("version"));
  package.license = read_line(root.at("license"));
  package.summary = read_line(root.at("summary"));
  package.min_loader =
      read_word(root.at("min_loader"), is_release, "is not a version; expected 0.1.0");
}

Package parse(std::string_view text, std::string_view folder, const std::string& subject) {
  const Json json = parse_exact_json(text, subject);
  const JsonView root(json, subject);
  check_keys(root, {"name", "version", "license", "summary", "min_loader", "ops"},
             {"cuda", "cpu", "binaries", "python", "check", "$schema"});
  if (root.has("$schema")) root.at("$schema").string();  // for editors: where the JSON Schema is
  Package package;
  parse_identity(root, folder, package);
  if (root.has("cpu")) package.cpu = parse_cpu(root.at("cpu"), package.name);
  if (root.has("python")) package.python = parse_python(root.at("python"), package.name);
  if (root.has("check")) package.check = parse_sources(root.at("check"), package.name);
  if (!root.has("cuda") && !root.has("cpu") && !root.has("binaries")) {
    root.fail("has none of \"cuda\", \"cpu\" and \"binaries\": there is nothing to build");
  }
  Scope functions({});
  Scope words({});
  for (const JsonView& item : non_empty(root.at("ops"))) {
    OpSchema op = parse_op(item);
    functions.add(op.name, item.at("name"));
    functions.add(op.name + "_workspace_bytes", item.at("name"));
    functions.add(camel_case(op.name), item.at("name"));
    functions.add(camel_case(op.name) + "Attributes", item.at("name"));
    for (std::size_t i = 0; i < op.attributes.size(); ++i) {
      if (op.attributes[i].values.empty()) continue;  // else there is a table of its words
      words.add(camel_case(op.name) + camel_case(op.attributes[i].name),
                item.at("attributes").items()[i].at("name"));
    }
    package.ops.push_back(std::move(op));
  }
  if (root.has("cuda")) package.cuda = parse_cuda(root.at("cuda"), package.ops, package.name);
  if (root.has("binaries")) {
    package.binaries = parse_binaries(root.at("binaries"), package.ops);
  }
  return package;
}

}  // namespace

std::span<const DTypeName> dtype_names() {
  return kDTypes;
}

bool is_dtype(std::string_view name) {
  return std::ranges::find(kDTypes, name, &DTypeName::name) != kDTypes.end();
}

int dtype_bytes(std::string_view name) {
  return std::ranges::find(kDTypes, name, &DTypeName::name)->bytes;
}

std::string dtype_code(std::string_view name) {
  const auto* const dtype = std::ranges::find(kDTypes, name, &DTypeName::name);
  return "sdk::DType::" + std::string(dtype->enumerator);
}

std::string shape_text(const std::vector<Extent>& shape) {
  return join(shape, ", ", [](const Extent& extent) {
    return extent.symbol.empty() ? std::to_string(extent.value) : extent.symbol;
  });
}

Package parse_package(std::string_view text, std::string_view folder, const std::string& file) {
  try {
    return parse(text, folder, file);
  } catch (const Error& error) {
    // The JSON reader speaks of integrity because most of its documents are downloaded ones.
    throw Error(ErrorCode::kBuild, error.what());
  }
}

std::vector<std::string> Package::shared_folders() const {
  std::set<std::string> names;
  const auto add = [&names](const std::string& source) {
    if (const std::string_view shared = shared_folder_of(source); !shared.empty()) {
      names.emplace(shared);
    }
  };
  std::for_each(cuda.host.begin(), cuda.host.end(), add);
  for (const DeviceSource& one : cuda.device) add(one.source);
  for (const Launch& launch : cuda.launch.launches) add(launch.source);
  std::for_each(cpu.host.begin(), cpu.host.end(), add);
  std::for_each(python.begin(), python.end(), add);
  std::for_each(check.begin(), check.end(), add);
  return {names.begin(), names.end()};
}

std::string underscored(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

}  // namespace kiln::build
