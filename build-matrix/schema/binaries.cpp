// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/schema/binaries.hpp"

#include <algorithm>
#include <array>

#include "base/join.hpp"
#include "base/quote.hpp"
#include "build-matrix/schema/fields.hpp"
#include "build-matrix/schema/names.hpp"
#include "build-matrix/schema/schema.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"

namespace kiln::build {
namespace {

constexpr Version kOldestGlibc = {2, 17};  // that Kiln itself runs on

/// "lib/x86_64/libstdc++.so.6": a relative path of plain components. Generated code names none.
std::string read_file_path(const JsonView& value) {
  const auto is_path = [](std::string path) {
    std::ranges::replace(path, '+', '_');
    return is_source_path(path, "") && path[0] != '.';
  };
  return read_word(value, is_path, "is not a file's path inside the package");
}

std::string read_soname(const JsonView& value) {
  return read_word(value, is_soname, "is not a library's name; expected libcudart.so.12");
}

Version read_version(const JsonView& value) {
  const auto is_good = [](const std::string& text) {
    const std::optional<Version> version = parse_version(text);
    return version && to_string(*version) == text;
  };
  return *parse_version(read_word(value, is_good, "is not a version; expected two numbers, 12.9"));
}

Binary::Abi read_abi(const JsonView& value) {
  constexpr std::array<std::string_view, 3> kAbis = {"kiln", "tvm-ffi", "cuda"};
  const auto is_abi = [&](const std::string& word) {
    return std::ranges::find(kAbis, word) != kAbis.end();
  };
  const std::string word =
      read_word(value, is_abi, "is not an ABI; expected kiln, tvm-ffi or cuda");
  return word == "kiln"      ? Binary::Abi::kKiln
         : word == "tvm-ffi" ? Binary::Abi::kTvmFfi
                             : Binary::Abi::kCuda;
}

/// What the op hands over where nothing else is stated: its tensors, then its attributes.
std::vector<std::string> names_in(const OpSchema& op) {
  std::vector<std::string> names;
  for (const TensorSchema& tensor : op.tensors) names.push_back(tensor.name);
  for (const AttributeSchema& attribute : op.attributes) names.push_back(attribute.name);
  return names;
}

/// A call of the op must mean the same by every library, so that none of it may be left out.
std::vector<std::string> read_arguments(const JsonView& value, const OpSchema& op) {
  const std::vector<std::string> all = names_in(op);
  const auto is_one = [&](const std::string& name) {
    return std::ranges::find(all, name) != all.end();
  };
  std::vector<std::string> arguments = read_list(value, [&](const JsonView& item) {
    return read_word(item, is_one, "is neither a tensor nor an attribute of " + op.name);
  });
  for (const std::string& name : all) {
    if (std::ranges::find(arguments, name) == arguments.end()) {
      value.fail("lacks " + name + " of " + op.name + ", which the call would not see");
    }
  }
  return arguments;
}

FunctionCall parse_function(const JsonView& value, const std::vector<OpSchema>& ops) {
  check_keys(value, {"op"}, {"name", "arguments"});
  const std::string word = value.at("op").string();
  const auto op = std::ranges::find(ops, word, &OpSchema::name);
  if (op == ops.end()) {
    value.at("op").fail(quote(word) + " is not an op; the ops are " +
                        join(ops, ", ", &OpSchema::name));
  }
  FunctionCall call{.op = op->name, .name = op->name, .arguments = names_in(*op)};
  if (value.has("name")) {
    call.name = read_word(
        value.at("name"),
        [](const std::string& name) { return !name.empty() && is_word(name, "_"); },
        "is not a function's name; expected what stands behind __tvm_ffi_");
  }
  if (value.has("arguments")) call.arguments = read_arguments(value.at("arguments"), *op);
  return call;
}

/// One for each op: as it is stated, else by the op's own name.
std::vector<FunctionCall> parse_functions(const JsonView& binary,
                                          const std::vector<OpSchema>& ops) {
  std::vector<FunctionCall> stated;
  if (binary.has("functions")) {
    for (const JsonView& item : non_empty(binary.at("functions"))) {
      FunctionCall call = parse_function(item, ops);
      if (std::ranges::find(stated, call.op, &FunctionCall::op) != stated.end()) {
        item.fail(call.op + " is listed twice");
      }
      stated.push_back(std::move(call));
    }
  }
  std::vector<FunctionCall> calls;
  for (const OpSchema& op : ops) {
    const auto found = std::ranges::find(stated, op.name, &FunctionCall::op);
    calls.push_back(found != stated.end() ? *found : FunctionCall{op.name, op.name, names_in(op)});
  }
  return calls;
}

void parse_device_part(const JsonView& value, Binary& binary) {
  check_keys(value, {"toolkit", "targets"});
  binary.toolkit = read_version(value.at("toolkit"));
  binary.targets = read_list(value.at("targets"), read_target);
}

/// The keys that mean something for libraries, or for images, alone.
void check_keys_of(const JsonView& value, Binary::Abi abi) {
  struct Row {
    const char* key;
    Binary::Abi abi;
    const char* wrong;
  };
  constexpr std::array<Row, 7> kRows = {
      {{"carries", Binary::Abi::kKiln, "a library with Kiln's ABI is packed as it is"},
       {"functions", Binary::Abi::kKiln, "a library with Kiln's ABI is packed as it is"},
       {"launches", Binary::Abi::kKiln, "a library launches its kernels itself"},
       {"launches", Binary::Abi::kTvmFfi, "a library launches its kernels itself"},
       {"carries", Binary::Abi::kCuda, "an image links nothing"},
       {"functions", Binary::Abi::kCuda, "an image has kernels; state \"launches\""},
       {"needs", Binary::Abi::kCuda, "an image links nothing"}}};
  for (const Row& row : kRows) {
    if (row.abi == abi && value.has(row.key)) value.at(row.key).fail(row.wrong);
  }
}

Binary parse_binary(const JsonView& value, const std::vector<OpSchema>& ops) {
  check_keys(value, {"file", "abi", "cpu"},
             {"glibc", "needs", "carries", "cuda", "functions", "launches"});
  Binary binary{.file = read_file_path(value.at("file")),
                .abi = read_abi(value.at("abi")),
                .cpu = read_cpu_level(value.at("cpu")),
                .glibc = kOldestGlibc};
  check_keys_of(value, binary.abi);
  if (value.has("glibc")) binary.glibc = read_version(value.at("glibc"));
  if (value.has("needs")) binary.needs = read_list(value.at("needs"), read_soname);
  if (value.has("cuda")) parse_device_part(value.at("cuda"), binary);
  if (value.has("carries")) binary.carries = read_list(value.at("carries"), read_file_path);
  if (binary.abi == Binary::Abi::kTvmFfi) binary.functions = parse_functions(value, ops);
  if (binary.abi == Binary::Abi::kCuda) {
    for (const char* key : {"cuda", "launches"}) {
      if (!value.has(key)) value.fail("lacks " + std::string(key) + ", which an image needs");
    }
    binary.launches = parse_image_launches(value.at("launches"), ops);
  }
  return binary;
}

}  // namespace

std::string Binary::variant() const {
  if (!toolkit) return "cpu-" + to_string(cpu);
  return "cu" + to_string(*toolkit) + "-" +
         join(targets, ".", [](const DeviceCode& code) { return to_string(code); }) + "-" +
         std::string(to_string(cpu.arch));
}

std::optional<Version> Binary::min_driver() const {
  if (!toolkit) return std::nullopt;
  // Any driver of the same major version runs machine code; PTX must not be newer than the driver.
  const bool any_sass =
      std::ranges::find(targets, DeviceCode::Kind::kSass, &DeviceCode::kind) != targets.end();
  return any_sass ? Version{toolkit->major, 0} : *toolkit;
}

std::vector<Binary> parse_binaries(const JsonView& value, const std::vector<OpSchema>& ops) {
  std::vector<Binary> binaries;
  for (const JsonView& item : non_empty(value)) {
    Binary binary = parse_binary(item, ops);
    if (!is_variant_id(binary.variant())) item.at("cuda").fail("names too many targets");
    for (const Binary& other : binaries) {
      if (other.variant() == binary.variant()) {
        item.fail("is the variant " + binary.variant() + ", as " + other.file + " is");
      }
    }
    binaries.push_back(std::move(binary));
  }
  return binaries;
}

}  // namespace kiln::build
