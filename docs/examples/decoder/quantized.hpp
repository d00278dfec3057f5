// SPDX-License-Identifier: Apache-2.0
//
// Quantized: those linears of a model that its config.json says are quantized, and its files hold
// as GPTQ, AWQ or compressed-tensors write them. By the package quantized-mlp each becomes a packed
// matrix, which its layer reads, or a plain weight. What it cannot read exactly as it was meant
// throws UnreadableModel: other bits and formats, columns in an order of their own (act-order).
// Nothing is guessed: config.json says the format, and each tensor has its dtype and shape.
#pragma once

#include <deque>
#include <kiln/layers/quantized_mlp.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "driver.hpp"
#include "safetensors.hpp"

// How some of a model's linears are stored. compressed-tensors may have several in one model.
struct Scheme {
  enum class Format { kPackQuantized, kIntQuantized, kFloatQuantized, kGptq, kGptqV2, kAwq };
  Format format;
  std::int64_t bits;
  std::int64_t group;     // columns that share a scale; kWhole: all of a row
  std::int64_t rows = 1;  // that share it: 1, or of FP8 128 or kWhole
  bool has_zeros = false;
  bool has_order = false;  // it is act-order unless the file's g_idx says otherwise

  static constexpr std::int64_t kWhole = 0;
};

// What config.json has under quantization_config.
struct Quantization {
  std::vector<Scheme> schemes;      // empty: the model is not quantized
  bool rounds_activations = false;  // it means FP8 for them, too

  // Throws UnreadableModel. `file` is for its text.
  static Quantization of(const nlohmann::json& config, const std::string& file);
};

class Quantized {
 public:
  Quantized(Quantization quantization, const Safetensors& file, kiln::Device device);

  // Whether the linear of this name is quantized, as its tensors are named. Throws UnreadableModel
  // where they are and config.json says nothing of it.
  bool has(const std::string& linear) const;

  // Of gate_proj, up_proj and down_proj below this name, all three of which must be quantized.
  kiln::layers::QuantizedMlp mlp(const std::string& name, std::int64_t width, std::int64_t hidden,
                                 kiln::layers::QuantizedMlp::Activation activation);

  // Writes the weights that a linear's codes mean, rounded once to the dtype of `weight`.
  void dequantize(const std::string& linear, const kiln::Tensor& weight) const;

  const std::optional<kiln::Kernel>& kernel() const { return kernel_; }
  bool rounds_activations() const { return quantization_.rounds_activations; }

 private:
  using Matrix = kiln::layers::QuantizedMlp::Matrix;
  struct Stored;
  struct Packed {
    Matrix matrix;
    std::int64_t bits, groups;
    bool is_float8;
  };

  Stored stored(const std::string& linear, std::int64_t rows, std::int64_t columns) const;
  Stored described(const Scheme& scheme, const std::string& linear, std::int64_t rows,
                   std::int64_t columns) const;
  Packed pack(const std::string& linear, std::int64_t rows, std::int64_t columns,
              std::deque<Memory>& memory) const;

  Quantization quantization_;
  const Safetensors& file_;
  kiln::Device device_;
  std::optional<kiln::Kernel> kernel_;
  std::deque<Memory> memory_;  // of the packed matrices
};
