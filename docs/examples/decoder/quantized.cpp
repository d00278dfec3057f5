// SPDX-License-Identifier: Apache-2.0
#include "quantized.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "words.hpp"

namespace {

namespace packing = kiln::ops::quantized_mlp;
using kiln::DType;
using kiln::Tensor;
using kiln::layers::QuantizedMlp;
using nlohmann::json;
using Format = Scheme::Format;

std::int64_t parts_of(std::int64_t extent, std::int64_t unit) {
  return (extent + unit - 1) / unit;
}

std::int64_t group_of(std::int64_t size) {
  return size <= 0 ? Scheme::kWhole : size;
}

// One of compressed-tensors' groups of modules.
Scheme scheme_of(const Words& words, const json& group, const json& format, Quantization* all) {
  const json& weights = member(group, "weights");
  words.expect(weights.is_object(), "weights of a group", weights, "how they are quantized");
  const json& own = member(group, "format");
  const json& name = own.is_null() ? format : own;
  Scheme scheme{};
  if (name == "pack-quantized") {
    scheme.format = Format::kPackQuantized;
  } else if (name == "int-quantized") {
    scheme.format = Format::kIntQuantized;
  } else {
    words.expect(name == "float-quantized", "format", name,
                 "pack-quantized, int-quantized or float-quantized");
    scheme.format = Format::kFloatQuantized;
  }
  const bool is_float = scheme.format == Format::kFloatQuantized;
  const json& type = member(weights, "type");
  words.expect(type == (is_float ? "float" : "int"), "type", type, is_float ? "float" : "int");
  scheme.bits = words.number(weights, "num_bits");
  words.expect(scheme.bits == 8 || (scheme.bits == 4 && scheme.format == Format::kPackQuantized),
               "num_bits", scheme.bits, scheme.format == Format::kPackQuantized ? "4 or 8" : "8");
  const json& strategy = member(weights, "strategy");
  const bool has_group = member(weights, "group_size").is_number_integer();
  if (strategy == "group" || (strategy.is_null() && has_group)) {
    scheme.group = group_of(words.number(weights, "group_size"));
  } else if (is_float && strategy == "block") {
    const json& block = member(weights, "block_structure");
    words.expect(block == json{128, 128}, "block_structure", block, "[128,128]");
    scheme.group = scheme.rows = 128;
  } else if (is_float && strategy == "tensor") {
    scheme.rows = Scheme::kWhole;
  } else {
    words.expect(strategy == "channel", "strategy", strategy,
                 is_float ? "group, channel, tensor or block" : "group or channel");
  }
  const json& symmetric = member(weights, "symmetric");
  scheme.has_zeros = symmetric == false;
  words.expect(!scheme.has_zeros || scheme.format == Format::kPackQuantized, "symmetric", symmetric,
               "true");
  const json& order = member(weights, "actorder");
  scheme.has_order = !order.is_null() && order != false && order != "weight" && order != "static";
  const json& inputs = member(group, "input_activations");
  // In 16 bits they are nearer to what was rounded than in FP8. Of whole numbers they are not: a
  // model may rely on what leaves their range.
  words.expect(inputs.is_null() || (is_float && member(inputs, "type") == "float"),
               "input_activations", inputs, "none, or of FP8 weights FP8");
  all->rounds_activations |= !inputs.is_null();
  words.expect_nothing(group, "output_activations");
  return scheme;
}

Scheme gptq_of(const Words& words, const json& found) {
  const bool has_checkpoint = !member(found, "checkpoint_format").is_null();
  const char* key = has_checkpoint ? "checkpoint_format" : "format";
  const std::string format = words.lower(found, key, "gptq");
  words.expect(format == "gptq" || format == "gptq_v2", key, format, "gptq or gptq_v2");
  const json& marlin = member(found, "is_marlin_format");
  words.expect(marlin.is_null() || marlin == false, "is_marlin_format", marlin, "false");
  const std::int64_t bits = words.number(found, "bits");
  words.expect(bits == 4 || bits == 8, "bits", bits, "4 or 8");
  return {.format = format == "gptq" ? Format::kGptq : Format::kGptqV2,
          .bits = bits,
          .group = group_of(words.number(found, "group_size")),
          .has_zeros = true,
          .has_order = member(found, "desc_act") == true};
}

Scheme awq_of(const Words& words, const json& found) {
  const char* key = member(found, "version").is_null() ? "format" : "version";
  const std::string version = words.lower(found, key, "gemm");
  words.expect(version == "gemm", key, version, "gemm");
  const std::int64_t bits = words.number(found, "bits");
  words.expect(bits == 4, "bits", bits, "4");
  return {.format = Format::kAwq,
          .bits = bits,
          .group = group_of(words.number(found, "group_size")),
          .has_zeros = true};
}

template <class Value>
std::vector<Value> values_of(const StoredTensor& tensor) {
  std::vector<Value> values(tensor.bytes / sizeof(Value));
  std::memcpy(values.data(), tensor.data, values.size() * sizeof(Value));
  return values;
}

template <class Op>
void run(const kiln::Kernel& kernel, const Op& arguments) {
  const auto op = kernel.op<Op>();
  kiln::OwnedWorkspace workspace(kernel.device());
  op.run(arguments, workspace.reserve(op.workspace_bytes(arguments)));
}

// Where all zeros are in the middle of the codes, the kernel need not read them.
bool is_middle(const StoredTensor& zeros, const Scheme& scheme) {
  const std::uint32_t ones = scheme.bits == 4 ? 0x11111111u : 0x01010101u;
  const std::uint32_t stored = ones << (scheme.bits - 1);
  const std::uint32_t middle = scheme.format == Format::kGptq ? stored - ones : stored;
  return std::ranges::all_of(values_of<std::uint32_t>(zeros),
                             [&](std::uint32_t word) { return word == middle; });
}

}  // namespace

Quantization Quantization::of(const json& config, const std::string& file) {
  const Words words{file};
  const json& usual = member(config, "quantization_config");
  const json& found = usual.is_null() ? member(config, "compression_config") : usual;
  Quantization all;
  if (found.is_null()) return all;
  const json& method = member(found, "quant_method");
  if (method == "gptq") {
    all.schemes = {gptq_of(words, found)};
  } else if (method == "awq") {
    all.schemes = {awq_of(words, found)};
  } else {
    words.expect(method == "compressed-tensors", "quant_method", method,
                 "compressed-tensors, gptq or awq");
    const json& groups = member(found, "config_groups");
    words.expect(groups.is_object() && !groups.empty(), "config_groups", groups, "one at least");
    for (const json& group : groups)
      all.schemes.push_back(scheme_of(words, group, member(found, "format"), &all));
    for (const char* key : {"kv_cache_scheme", "transform_config"})
      words.expect_nothing(found, key);
    if (member(member(found, "sparsity_config"), "format") != "dense")
      words.expect_nothing(found, "sparsity_config");
  }
  return all;
}

// A linear's tensors, as pack and pack_zeros take them.
struct Quantized::Stored {
  struct Part {
    std::string name;
    std::vector<std::string> dtypes;
    std::vector<Shape> shapes;
  };
  Scheme scheme;
  std::int64_t groups;
  Part codes, scales, zeros;
  std::string order;  // the name of its g_idx
  packing::PackAttributes::Layout layout = packing::PackAttributes::Layout::kPlain;
  packing::PackZerosAttributes::Layout zeros_layout = packing::PackZerosAttributes::Layout::kPlain;
};

Quantized::Quantized(Quantization quantization, const Safetensors& file, kiln::Device device)
    : quantization_(std::move(quantization)), file_(file), device_(device) {
  if (!quantization_.schemes.empty())
    kernel_ = kiln::get_kernel("quantized-mlp", {.version = 1, .device = device_});
}

bool Quantized::has(const std::string& linear) const {
  std::string found;
  for (const char* name : {".qweight", ".weight_packed"}) {
    if (file_.find(linear + name) != nullptr) found = linear + name;
  }
  const StoredTensor* weight = file_.find(linear + ".weight");
  if (weight != nullptr && (weight->dtype.starts_with("F8") || weight->dtype == "I8"))
    found = linear + ".weight";
  if (!found.empty() && quantization_.schemes.empty())
    file_.refuse(found, "is quantized, expected a quantization_config in config.json");
  return !found.empty();
}

Quantized::Stored Quantized::described(const Scheme& scheme, const std::string& linear,
                                       std::int64_t rows, std::int64_t columns) const {
  using Layout = packing::PackAttributes::Layout;
  using ZerosLayout = packing::PackZerosAttributes::Layout;
  const std::int64_t in_word = 32 / scheme.bits;
  const std::int64_t groups = scheme.group == Scheme::kWhole ? 1 : parts_of(columns, scheme.group);
  const std::vector<std::string> halves = {"BF16", "F16"};
  Stored s{.scheme = scheme, .groups = groups};
  switch (scheme.format) {
    case Format::kPackQuantized:
      s.codes = {linear + ".weight_packed", {"I32"}, {Shape{rows, parts_of(columns, in_word)}}};
      s.scales = {linear + ".weight_scale", halves, {Shape{rows, groups}}};
      s.zeros = {linear + ".weight_zero_point", {"I32"}, {Shape{parts_of(rows, in_word), groups}}};
      s.order = linear + ".weight_g_idx";
      s.layout = Layout::kCompressedTensors;
      s.zeros_layout = ZerosLayout::kCompressedTensors;
      break;
    case Format::kIntQuantized:
      s.codes = {linear + ".weight", {"I8"}, {Shape{rows, columns}}};
      s.scales = {linear + ".weight_scale", halves, {Shape{rows, groups}}};
      s.order = linear + ".weight_g_idx";
      break;
    case Format::kFloatQuantized: {
      s.codes = {linear + ".weight", {"F8_E4M3"}, {Shape{rows, columns}}};
      s.scales = {linear + ".weight_scale", {"BF16", "F16", "F32"}, {}};
      if (scheme.rows == Scheme::kWhole) {
        s.scales.shapes = {Shape{}, Shape{1}, Shape{1, 1}};
      } else {
        s.scales.shapes = {Shape{parts_of(rows, scheme.rows), groups}};
      }
      s.order = linear + ".weight_g_idx";
      break;
    }
    case Format::kGptq:
    case Format::kGptqV2:
      s.codes = {linear + ".qweight", {"I32"}, {Shape{parts_of(columns, in_word), rows}}};
      s.scales = {linear + ".scales", halves, {Shape{groups, rows}}};
      s.zeros = {linear + ".qzeros", {"I32"}, {Shape{groups, parts_of(rows, in_word)}}};
      s.order = linear + ".g_idx";
      s.layout = Layout::kGptq;
      s.zeros_layout = scheme.format == Format::kGptq ? ZerosLayout::kGptq : ZerosLayout::kGptqV2;
      break;
    case Format::kAwq:
      s.codes = {linear + ".qweight", {"I32"}, {Shape{columns, parts_of(rows, in_word)}}};
      s.scales = {linear + ".scales", halves, {Shape{groups, rows}}};
      s.zeros = {linear + ".qzeros", {"I32"}, {Shape{groups, parts_of(rows, in_word)}}};
      s.order = linear + ".g_idx";
      s.layout = Layout::kAwq;
      s.zeros_layout = ZerosLayout::kAwq;
      break;
  }
  return s;
}

// Of several schemes one whose codes and scales are there, rather one whose zeros are there as it
// says; of none, at() says what is missing.
Quantized::Stored Quantized::stored(const std::string& linear, std::int64_t rows,
                                    std::int64_t columns) const {
  const auto fits = [&](const Stored::Part& part) {
    const StoredTensor* found = file_.find(part.name);
    return found != nullptr && std::ranges::count(part.dtypes, found->dtype) != 0 &&
           std::ranges::count(part.shapes, found->shape) != 0;
  };
  Stored first = described(quantization_.schemes.front(), linear, rows, columns);
  bool is_found = false;
  for (const Scheme& scheme : quantization_.schemes) {
    Stored each = described(scheme, linear, rows, columns);
    if (!fits(each.codes) || !fits(each.scales)) continue;
    const bool has_zeros = file_.find(each.zeros.name) != nullptr;
    const bool agrees = scheme.has_zeros == has_zeros;
    if (agrees || !is_found) first = std::move(each);
    is_found = true;
    if (agrees) break;
  }
  const std::int64_t size = first.scheme.group;
  if (size != Scheme::kWhole && size != 32 && size != 64 && size != 128 && size < columns) {
    file_.refuse(linear,
                 "has groups of " + std::to_string(size) + " columns, expected 32, 64, 128 or all");
  }
  for (const Stored::Part& part : {first.codes, first.scales})
    file_.at(part.name, part.dtypes, part.shapes);
  const bool has_g_idx = file_.find(first.order) != nullptr;
  if (first.scheme.has_order && !has_g_idx)
    file_.refuse(first.order, "is not there, expected it where config.json says act-order");
  if (has_g_idx) {
    const auto order = values_of<std::int32_t>(file_.at(first.order, {"I32"}, {Shape{columns}}));
    const bool is_unset = std::ranges::all_of(order, [](std::int32_t each) { return each == -1; });
    for (std::int64_t k = 0; k < columns && !is_unset; ++k) {
      const std::int64_t expected = size == Scheme::kWhole ? 0 : k / size;
      const std::int64_t found = order[static_cast<std::size_t>(k)];
      if (found != expected) {
        file_.refuse(first.order, "has column " + std::to_string(k) + " in group " +
                                      std::to_string(found) + ", expected " +
                                      std::to_string(expected) + ": act-order is not read");
      }
    }
  }
  if (first.scheme.format == Format::kPackQuantized) {
    const std::string name = linear + ".weight_shape";
    const auto shape = values_of<std::int64_t>(file_.at(name, {"I64"}, {Shape{2}}));
    if (shape != Shape{rows, columns})
      file_.refuse(name,
                   "says " + json(shape).dump() + ", expected " + json({rows, columns}).dump());
  } else if (first.zeros.name.empty() && file_.find(linear + ".weight_zero_point") != nullptr) {
    file_.refuse(linear + ".weight_zero_point", "is there, expected none in this format");
  }
  return first;
}

Quantized::Packed Quantized::pack(const std::string& linear, std::int64_t rows,
                                  std::int64_t columns, std::deque<Memory>& memory) const {
  const Stored from = stored(linear, rows, columns);
  std::deque<Memory> read;  // until the ops have run: freeing waits for the device
  const auto upload = [&](const Stored::Part& part) {
    const StoredTensor& tensor = file_.at(part.name, part.dtypes, part.shapes);
    Memory& copy = read.emplace_back(device_, tensor.bytes);
    copy.write(tensor.data, tensor.bytes);
    const Shape shape = tensor.shape.size() < 2 ? Shape{1, 1} : tensor.shape;
    return Tensor(copy.data(), dtype_of(tensor), shape, device_);
  };
  const auto make = [&](DType dtype, const Shape& shape) {
    const std::int64_t count = shape[0] * shape[1] * shape[2];
    Memory& made =
        memory.emplace_back(device_, static_cast<std::size_t>(count) * kiln::size_of(dtype));
    return Tensor(made.data(), dtype, shape, device_);
  };
  const std::int64_t tiles = parts_of(rows, 16);
  const std::int64_t bits = from.scheme.bits;
  const bool is_float8 = from.scheme.format == Format::kFloatQuantized;
  const Tensor codes = upload(from.codes);
  const Tensor scales = upload(from.scales);
  const DType scales_dtype = is_float8 ? DType::kFloat32 : dtype_of(*file_.find(from.scales.name));
  const Tensor packed = make(is_float8 ? DType::kFloat8E4M3FN : DType::kUInt8,
                             {tiles, parts_of(columns, 64), 128 * bits});
  const Tensor packed_scales = make(scales_dtype, {tiles, from.groups, 16});
  run(*kernel_, packing::Pack{.codes = codes,
                              .scales = scales,
                              .packed = packed,
                              .packed_scales = packed_scales,
                              .attributes = {.layout = from.layout}});
  Tensor zeros;
  const bool are_there = !from.zeros.name.empty() && file_.find(from.zeros.name) != nullptr;
  if (from.scheme.has_zeros || are_there) {
    const StoredTensor& stored = file_.at(from.zeros.name, from.zeros.dtypes, from.zeros.shapes);
    if (!is_middle(stored, from.scheme)) {
      zeros = make(DType::kUInt8, {tiles, from.groups, 16});
      run(*kernel_, packing::PackZeros{.zeros = upload(from.zeros),
                                       .packed_zeros = zeros,
                                       .attributes = {.layout = from.zeros_layout, .bits = bits}});
    }
  }
  return {.matrix = {.codes = packed, .scales = packed_scales, .zeros = zeros},
          .bits = bits,
          .groups = from.groups,
          .is_float8 = is_float8};
}

QuantizedMlp Quantized::mlp(const std::string& name, std::int64_t width, std::int64_t hidden,
                            QuantizedMlp::Activation activation) {
  for (const char* linear : {"gate_proj", "up_proj", "down_proj"}) {
    if (!has(name + linear))
      file_.refuse(name + linear, "is not quantized, expected all linears of this MLP to be");
  }
  const Packed gate = pack(name + "gate_proj", hidden, width, memory_);
  const Packed up = pack(name + "up_proj", hidden, width, memory_);
  const Packed down = pack(name + "down_proj", width, hidden, memory_);
  const auto said = [](const Packed& each) {
    return std::to_string(each.bits) + (each.is_float8 ? " bits of FP8 in " : " bits in ") +
           std::to_string(each.groups) + " groups";
  };
  if (said(gate) != said(up))
    file_.refuse(name + "up_proj", "has " + said(up) + ", expected gate_proj's " + said(gate));
  if (gate.is_float8 != down.is_float8)
    file_.refuse(name + "down_proj", "has " + said(down) + ", beside " + said(gate));
  return {*kernel_,
          {.gate = gate.matrix,
           .up = up.matrix,
           .down = down.matrix,
           .attributes = {.activation = activation}}};
}

void Quantized::dequantize(const std::string& linear, const Tensor& weight) const {
  std::deque<Memory> memory;
  const std::int64_t rows = weight.extent(0);
  const std::int64_t columns = weight.extent(1);
  const Packed from = pack(linear, rows, columns, memory);
  const DType dtype = from.is_float8 ? DType::kFloat8E4M3FN : DType::kUInt8;
  Memory& codes = memory.emplace_back(device_, static_cast<std::size_t>(rows * columns));
  run(*kernel_, packing::Unpack{.packed = from.matrix.codes,
                                .packed_scales = from.matrix.scales,
                                .packed_zeros = from.matrix.zeros,
                                .codes = Tensor(codes.data(), dtype, {rows, columns}, device_),
                                .weight = weight});
}
