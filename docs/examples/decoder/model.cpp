// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <kiln/float16.hpp>
#include <kiln/ops/attention.hpp>
#include <kiln/ops/geglu_mlp.hpp>
#include <kiln/ops/linear.hpp>
#include <kiln/ops/rms_norm.hpp>
#include <kiln/ops/rotary_embedding.hpp>
#include <kiln/ops/swiglu_mlp.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <stdexcept>

#include "words.hpp"

namespace {

namespace ops = kiln::ops;
using kiln::DType;
using kiln::Tensor;

constexpr std::int64_t kPage = 16;  // rows of a page
constexpr const char* kEmbeddings = "model.embed_tokens.weight";

// The same memory from row `first` on, as rows of `width`.
Tensor rows_of(const Tensor& tensor, std::int64_t first, std::int64_t rows, std::int64_t width) {
  DLTensor dl = tensor.dl();
  std::int64_t shape[] = {rows, width};
  dl.byte_offset += dl.dtype.bits / 8u * static_cast<std::uint64_t>(first * width);
  dl.ndim = 2;
  dl.shape = shape;
  dl.strides = nullptr;
  return Tensor(dl);
}

// rope_parameters of transformers 5; before it rope_theta, and rope_scaling beside it.
void read_rotation(const nlohmann::json& json, const Words& words, Config& config) {
  const nlohmann::json& all = member(json, "rope_parameters");
  const nlohmann::json& scaling = all.is_null() ? member(json, "rope_scaling") : all;
  config.theta = words.real(all, "rope_theta", words.real(json, "rope_theta", 10000.0));
  if (scaling.is_null()) return;
  const char* key = all.is_null() ? "rope_scaling" : "rope_parameters";
  words.expect(scaling.is_object(), key, scaling, "an object");
  const std::string type =
      words.lower(scaling, "rope_type", words.lower(scaling, "type", "default"));
  if (type == "llama3") {
    config.scaling =
        Config::Llama3{.factor = words.real(scaling, "factor"),
                       .low = words.real(scaling, "low_freq_factor"),
                       .high = words.real(scaling, "high_freq_factor"),
                       .length = words.real(scaling, "original_max_position_embeddings")};
  } else if (type != "default") {
    words.expect(false, "rope_type", type, "default or llama3");
  }
}

// Of the pairs of a head's columns: radians a position.
std::vector<double> frequencies_of(const Config& config) {
  std::vector<double> frequencies(static_cast<std::size_t>(config.head_width / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    double& each = frequencies[i];
    each = std::pow(config.theta,
                    -2.0 * static_cast<double>(i) / static_cast<double>(config.head_width));
    if (!config.scaling) continue;
    const Config::Llama3& by = *config.scaling;
    const double turns = by.length * each / (2 * std::numbers::pi);  // in the original's sequence
    const double kept = std::clamp((turns - by.low) / (by.high - by.low), 0.0, 1.0);
    each *= kept + (1 - kept) / by.factor;
  }
  return frequencies;
}

std::uint16_t to_bits(float value, DType dtype) {
  return dtype == DType::kFloat16 ? kiln::to_float16(value) : kiln::to_bfloat16(value);
}
float from_bits(std::uint16_t bits, DType dtype) {
  return dtype == DType::kFloat16 ? kiln::from_float16(bits) : kiln::from_bfloat16(bits);
}

// transformers' gelu_pytorch_tanh is Gemma's; its first configs say so by hidden_act gelu.
void expect_activation(const nlohmann::json& json, const Words& words, bool gemma) {
  const nlohmann::json& act = member(json, "hidden_act");
  const nlohmann::json& activation = member(json, "hidden_activation");
  if (!gemma) {
    words.expect(act.is_null() || act == "silu", "hidden_act", act, "silu");
    return;
  }
  words.expect(act.is_null() || act == "gelu" || act == "gelu_pytorch_tanh", "hidden_act", act,
               "gelu_pytorch_tanh or gelu");
  words.expect(activation.is_null() || activation == "gelu_pytorch_tanh", "hidden_activation",
               activation, "gelu_pytorch_tanh");
}

Config config_of(const nlohmann::json& json, const std::string& file) {
  const Words words{file};
  const nlohmann::json& type = member(json, "model_type");
  words.expect(type == "llama" || type == "gemma", "model_type", type, "llama or gemma");
  Config config{};
  config.gemma = type == "gemma";
  config.width = words.count(json, "hidden_size");
  config.hidden = words.count(json, "intermediate_size");
  config.layers = words.count(json, "num_hidden_layers");
  config.heads = words.count(json, "num_attention_heads");
  config.kv_heads = words.count(json, "num_key_value_heads", config.heads);
  config.head_width = words.count(json, "head_dim", config.width / config.heads);
  config.vocabulary = words.count(json, "vocab_size");
  config.eps = words.real(json, "rms_norm_eps", 1e-6);
  config.tied = words.truth(json, "tie_word_embeddings", config.gemma);
  std::int64_t rows = 0;  // of q, k and v, which are one weight
  words.expect(!__builtin_mul_overflow(config.kv_heads, 2, &rows) &&
                   !__builtin_add_overflow(config.heads, rows, &rows) &&
                   !__builtin_mul_overflow(config.head_width, rows, &rows),
               "head_dim", config.head_width, "rows of q, k and v that can be counted");
  expect_activation(json, words, config.gemma);
  read_rotation(json, words, config);
  config.quantization = Quantization::of(json, file);
  return config;
}

}  // namespace

Config read_config(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) throw UnreadableModel("read " + file.string() + ": it cannot be opened");
  try {
    return config_of(nlohmann::json::parse(stream), file.string());
  } catch (const nlohmann::json::exception& error) {
    throw UnreadableModel("read " + file.string() + ": " + error.what());
  }
}

Model::Buffer& Model::make(DType dtype, std::initializer_list<std::int64_t> shape) {
  const std::optional<std::size_t> bytes = bytes_of(dtype, shape);
  if (!bytes) {
    throw UnreadableModel("read config.json: it means a tensor of " +
                          nlohmann::json(Shape(shape)).dump() + ", expected one that has a size");
  }
  Memory memory(device_, *bytes);
  const Tensor tensor(memory.data(), dtype, shape, device_);
  return buffers_.emplace_back(Buffer{tensor, std::move(memory)});
}

const StoredTensor& Model::stored(const std::string& name,
                                  std::initializer_list<std::int64_t> shape) const {
  return file_.at(name, {dtype_ == DType::kFloat16 ? "F16" : "BF16"}, {Shape(shape)});
}

Tensor Model::weight(const std::string& name, std::initializer_list<std::int64_t> shape) {
  const StoredTensor& from = stored(name, shape);
  if (device_.kind == kiln::Device::Kind::kCpu) return Tensor(from.data, dtype_, shape, device_);
  Buffer& buffer = make(dtype_, shape);
  buffer.memory.write(from.data, from.bytes);
  return buffer.tensor;
}

// A bias has no place in these layers; GPTQ's tools write one of zeros.
bool Model::is_quantized(const std::string& linear) const {
  const StoredTensor* bias = file_.find(linear + ".bias");
  if (bias != nullptr && std::any_of(bias->data, bias->data + bias->bytes,
                                     [](std::byte b) { return b != std::byte{}; }))
    file_.refuse(linear + ".bias", "is not zero, expected no bias");
  return quantized_.has(linear);
}

Tensor Model::linear_weight(const std::string& linear, std::int64_t rows, std::int64_t columns) {
  if (!is_quantized(linear)) return weight(linear + ".weight", {rows, columns});
  Buffer& buffer = make(dtype_, {rows, columns});
  quantized_.dequantize(linear, buffer.tensor);
  return buffer.tensor;
}

// The rows of q, then of k and v: one product gives all three.
Tensor Model::qkv_weight(const std::string& attention) {
  const std::int64_t width = config_.width;
  Buffer& all = make(dtype_, {config_.qkv_width(), width});
  std::int64_t first = 0;
  for (const auto& [name, rows] :
       {std::pair{"q_proj", config_.q_width()}, std::pair{"k_proj", config_.kv_width()},
        std::pair{"v_proj", config_.kv_width()}}) {
    const std::string linear = attention + name;
    if (is_quantized(linear)) {
      quantized_.dequantize(linear, rows_of(all.tensor, first, rows, width));
    } else {
      all.memory.write(stored(linear + ".weight", {rows, width}).data,
                       2 * static_cast<std::size_t>(rows * width),
                       2 * static_cast<std::size_t>(first * width));
    }
    first += rows;
  }
  return all.tensor;
}

// Where it is tied and stored besides, transformers 4 takes the embeddings, transformers 5 what is
// stored: the two must be the same.
Tensor Model::head_weight() {
  const std::int64_t rows = config_.vocabulary;
  const std::int64_t width = config_.width;
  const char* name = "lm_head.weight";
  const bool is_coded = is_quantized("lm_head");
  const bool is_there = is_coded || file_.find(name) != nullptr;
  if (!config_.tied) {
    if (!is_there)
      file_.refuse(name, "is not there, expected it where tie_word_embeddings is false");
    return linear_weight("lm_head", rows, width);
  }
  const StoredTensor& embeddings = stored(kEmbeddings, {rows, width});
  const auto differs = [&] {
    const StoredTensor& head = stored(name, {rows, width});
    return std::memcmp(head.data, embeddings.data, embeddings.bytes) != 0;
  };
  if (is_there && (is_coded || differs())) {
    file_.refuse(name, "differs from " + std::string(kEmbeddings) +
                           ", expected the same where tie_word_embeddings is true");
  }
  return weight(kEmbeddings, {rows, width});
}

// All three of its linears are quantized, or none.
void Model::load_mlp(const std::string& name, Layer& layer) {
  using Activation = kiln::layers::QuantizedMlp::Activation;
  const std::int64_t width = config_.width;
  const std::int64_t hidden = config_.hidden;
  int quantized = 0;
  for (const char* linear : {"gate_proj", "up_proj", "down_proj"})
    quantized += is_quantized(name + linear) ? 1 : 0;
  if (quantized > 0) {
    layer.quantized = quantized_.mlp(name, width, hidden,
                                     config_.gemma ? Activation::kGeluTanh : Activation::kSilu);
    return;
  }
  layer.gate = weight(name + "gate_proj.weight", {hidden, width});
  layer.up = weight(name + "up_proj.weight", {hidden, width});
  layer.down = weight(name + "down_proj.weight", {width, hidden});
  if (!mlp_) {
    mlp_ = kiln::get_kernel(config_.gemma ? "geglu-mlp" : "swiglu-mlp",
                            {.version = 1, .device = device_});
  }
}

Model::Model(const std::filesystem::path& folder, kiln::Device device, std::int64_t longest)
    : config_(read_config(folder / "config.json")),
      norm_(kiln::get_kernel("rms-norm", {.version = 1, .device = device})),
      device_(norm_.device()),
      longest_((longest + kPage - 1) / kPage * kPage),
      file_(folder / "model.safetensors"),
      dtype_(dtype_of(
          file_.at(kEmbeddings, {"BF16", "F16"}, {Shape{config_.vocabulary, config_.width}}))),
      quantized_(config_.quantization, file_, device_),
      linear_(kiln::get_kernel("linear", {.version = 1, .device = device_})),
      rotary_(kiln::get_kernel("rotary-embedding", {.version = 1, .device = device_})),
      attention_(kiln::get_kernel("attention", {.version = 1, .device = device_})),
      workspace_(device_),
      embeddings_(file_.find(kEmbeddings)->data),
      block_table_(&make(DType::kInt32, {1, longest_ / kPage})),
      lengths_(&make(DType::kInt32, {1})),
      cos_(&make(DType::kFloat32, {longest_, config_.head_width / 2})),
      sin_(&make(DType::kFloat32, {longest_, config_.head_width / 2})),
      one_(make_step(1)),
      queue_(device_) {
  const std::int64_t width = config_.width;
  for (std::int64_t i = 0; i < config_.layers; ++i) {
    const std::string name = "model.layers." + std::to_string(i) + ".";
    const auto pages = [&] {
      return make(dtype_, {longest_ / kPage, kPage, config_.kv_heads, config_.head_width}).tensor;
    };
    Layer& layer = layers_.emplace_back();
    layer.norm = weight(name + "input_layernorm.weight", {width});
    layer.qkv = qkv_weight(name + "self_attn.");
    layer.o = linear_weight(name + "self_attn.o_proj", width, config_.q_width());
    layer.mlp_norm = weight(name + "post_attention_layernorm.weight", {width});
    layer.k_pages = pages();
    layer.v_pages = pages();
    load_mlp(name + "mlp.", layer);
  }
  last_norm_ = weight("model.norm.weight", {width});
  head_ = head_weight();
  std::vector<std::int32_t> table(static_cast<std::size_t>(longest_ / kPage));
  std::iota(table.begin(), table.end(), 0);
  block_table_->memory.write(table.data(), table.size() * sizeof(table[0]));

  const std::vector<double> frequencies = frequencies_of(config_);
  Buffer& stored = make(DType::kFloat64, {config_.head_width / 2});
  stored.memory.write(frequencies.data(), frequencies.size() * sizeof(double));
  run(rotary_,
      ops::rotary_embedding::Tables{
          .frequencies = stored.tensor, .cos = cos_->tensor, .sin = sin_->tensor},
      queue_.stream());
}

Model::Step Model::make_step(std::int64_t rows) {
  const std::int64_t width = config_.width;
  Buffer& starts = make(DType::kInt32, {2});
  const std::int32_t of_one_sequence[] = {0, static_cast<std::int32_t>(rows)};
  starts.memory.write(of_one_sequence, sizeof(of_one_sequence));
  return {.rows = rows,
          .embedded = make(dtype_, {rows, width}),
          .positions = make(DType::kInt32, {rows}),
          .starts = starts,
          .hidden = make(dtype_, {rows, width}),
          .normed = make(dtype_, {rows, width}),
          .qkv = make(dtype_, {rows, config_.qkv_width()}),
          .attended = make(dtype_, {rows, config_.heads, config_.head_width}),
          .out = make(dtype_, {rows, width}),
          .logits = make(dtype_, {1, config_.vocabulary})};
}

void Model::write_inputs(const Step& step, const std::vector<int>& tokens) {
  const auto width = static_cast<std::size_t>(config_.width);
  // Gemma's factor itself has the model's dtype.
  const float factor =
      from_bits(to_bits(std::sqrt(static_cast<float>(config_.width)), dtype_), dtype_);
  std::vector<std::uint16_t> embedded(tokens.size() * width);
  std::vector<std::int32_t> positions(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config_.vocabulary) {
      throw std::runtime_error("token " + std::to_string(tokens[i]) + " is not one of the " +
                               std::to_string(config_.vocabulary) + " of the vocabulary");
    }
    std::memcpy(&embedded[i * width], embeddings_ + 2 * width * static_cast<std::size_t>(tokens[i]),
                2 * width);
    positions[i] = static_cast<std::int32_t>(length_ + static_cast<std::int64_t>(i));
  }
  if (config_.gemma) {
    for (std::uint16_t& value : embedded)
      value = to_bits(from_bits(value, dtype_) * factor, dtype_);
  }
  const std::int32_t length = positions.back() + 1;
  step.embedded.memory.write(embedded.data(), embedded.size() * sizeof(embedded[0]));
  step.positions.memory.write(positions.data(), positions.size() * sizeof(positions[0]));
  lengths_->memory.write(&length, sizeof(length));
}

void Model::attend(const Step& step, const Layer& layer, kiln::Stream stream) {
  const std::int64_t q_width = config_.q_width();
  const std::int64_t kv_width = config_.kv_width();
  const Tensor q = step.qkv.tensor.columns(0, q_width);
  const Tensor k = step.qkv.tensor.columns(q_width, kv_width);
  const Tensor v = step.qkv.tensor.columns(q_width + kv_width, kv_width);
  run(linear_,
      ops::linear::Forward{.x = step.normed.tensor, .weight = layer.qkv, .y = step.qkv.tensor},
      stream);
  run(rotary_,
      ops::rotary_embedding::Rotate{.x = step.qkv.tensor.columns(0, q_width + kv_width),
                                    .positions = step.positions.tensor,
                                    .cos = cos_->tensor,
                                    .sin = sin_->tensor,
                                    .out = step.qkv.tensor.columns(0, q_width + kv_width),
                                    .attributes = {.head_dim = config_.head_width}},
      stream);
  run(attention_,
      ops::attention::Append{.k = k,
                             .v = v,
                             .slots = step.positions.tensor,  // the pages are in order
                             .k_pages = layer.k_pages,
                             .v_pages = layer.v_pages},
      stream);
  if (step.rows == length_) {  // a whole sequence: its keys are here
    run(attention_,
        ops::attention::Prefill{.q = q,
                                .k = k,
                                .v = v,
                                .cu_seqlens_q = step.starts.tensor,
                                .cu_seqlens_k = step.starts.tensor,
                                .out = step.attended.tensor,
                                .attributes = {.window_right = 0}},
        stream);
  } else {
    run(attention_,
        ops::attention::Decode{.q = q,
                               .k_pages = layer.k_pages,
                               .v_pages = layer.v_pages,
                               .block_table = block_table_->tensor,
                               .lengths = lengths_->tensor,
                               .out = step.attended.tensor},
        stream);
  }
  run(linear_,
      ops::linear::Forward{.x = rows_of(step.attended.tensor, 0, step.rows, q_width),
                           .weight = layer.o,
                           .y = step.out.tensor},
      stream);
}

// Adds to the residual.
void Model::run_mlp(const Step& step, const Layer& layer, const Tensor& residual,
                    kiln::Stream stream) {
  const Tensor& x = step.normed.tensor;
  if (layer.quantized) {
    layer.quantized->forward({x, residual}, residual,
                             workspace_.reserve(layer.quantized->workspace_bytes(x)), stream);
  } else if (config_.gemma) {
    run(*mlp_,
        ops::geglu_mlp::Forward{
            .x = x,
            .gate = layer.gate,
            .up = layer.up,
            .down = layer.down,
            .residual = residual,
            .y = residual,
            .attributes = {.approximate = ops::geglu_mlp::ForwardAttributes::Approximate::kTanh}},
        stream);
  } else {
    run(*mlp_,
        ops::swiglu_mlp::Forward{.x = x,
                                 .gate = layer.gate,
                                 .up = layer.up,
                                 .down = layer.down,
                                 .residual = residual,
                                 .y = residual},
        stream);
  }
}

// hidden is written before it is read, so that a step may be run again.
void Model::enqueue(const Step& step, kiln::Stream stream) {
  const ops::rms_norm::ForwardAttributes norm{.eps = config_.eps,
                                              .offset = config_.gemma ? 1.0 : 0.0};
  Tensor residual = step.embedded.tensor;
  for (const Layer& layer : layers_) {
    run(norm_,
        ops::rms_norm::Forward{
            .x = residual, .weight = layer.norm, .y = step.normed.tensor, .attributes = norm},
        stream);
    attend(step, layer, stream);
    run(norm_,
        ops::rms_norm::Forward{.x = step.out.tensor,
                               .weight = layer.mlp_norm,
                               .residual = residual,
                               .y = step.normed.tensor,
                               .h_out = step.hidden.tensor,
                               .attributes = norm},
        stream);
    residual = step.hidden.tensor;
    run_mlp(step, layer, residual, stream);
  }
  // The last row alone.
  const auto last = [&](const Tensor& tensor) {
    return rows_of(tensor, step.rows - 1, 1, config_.width);
  };
  run(norm_,
      ops::rms_norm::Forward{.x = last(residual),
                             .weight = last_norm_,
                             .y = last(step.normed.tensor),
                             .attributes = norm},
      stream);
  run(linear_,
      ops::linear::Forward{.x = last(step.normed.tensor), .weight = head_, .y = step.logits.tensor},
      stream);
}

std::vector<float> Model::forward(const std::vector<int>& tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count == 0 || length_ + count > longest_) {
    throw std::runtime_error("a sequence of " + std::to_string(length_ + count) +
                             " tokens, expected 1 to " + std::to_string(longest_));
  }
  const bool is_one = count == 1 && length_ > 0;
  const Step step = is_one ? one_ : make_step(count);
  write_inputs(step, tokens);
  length_ += count;
  if (is_one) {
    queue_.run([&](kiln::Stream stream) { enqueue(step, stream); });
  } else {
    enqueue(step, queue_.stream());
  }
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(config_.vocabulary));
  queue_.wait();
  step.logits.memory.read(bits.data(), bits.size() * sizeof(bits[0]));
  std::vector<float> logits(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) logits[i] = from_bits(bits[i], dtype_);
  return logits;
}

std::vector<std::string> Model::variants() const {
  std::vector<std::string> all;
  const auto add = [&](const kiln::Kernel& kernel) {
    all.push_back(std::string(kernel.name()) + " " + std::string(kernel.variant()));
  };
  for (const kiln::Kernel* kernel : {&norm_, &linear_, &rotary_, &attention_}) add(*kernel);
  if (mlp_) add(*mlp_);
  if (quantized_.kernel()) add(*quantized_.kernel());
  if (quantized_.rounds_activations())
    all.emplace_back("activations are not rounded to FP8, as config.json means them to be");
  return all;
}
