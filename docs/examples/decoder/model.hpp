// SPDX-License-Identifier: Apache-2.0
//
// Model: a decoder in the shape of Llama, or of the first Gemma, whose layers are calls of
// packages. One sequence; its keys and values lie in pages. All numbers have the dtype of the
// file's embeddings, bfloat16 or float16.
#pragma once

#include <deque>
#include <filesystem>
#include <kiln/kiln.hpp>
#include <optional>
#include <string>
#include <vector>

#include "driver.hpp"
#include "quantized.hpp"
#include "safetensors.hpp"

// What the program needs of transformers' config.json.
struct Config {
  std::int64_t width, hidden, layers, heads, kv_heads, head_width, vocabulary;
  double eps, theta;
  // Of rope_type llama3: how far apart slow rotations are, next to that of a model of `length`.
  struct Llama3 {
    double factor, low, high, length;
  };
  std::optional<Llama3> scaling;
  bool tied;   // the embeddings are lm_head, too
  bool gemma;  // GELU for SiLU, norms with 1 + weight, embeddings times the root of the width
  Quantization quantization;

  std::int64_t q_width() const { return heads * head_width; }
  std::int64_t kv_width() const { return kv_heads * head_width; }
  std::int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};
// Throws UnreadableModel.
Config read_config(const std::filesystem::path& file);

class Model {
 public:
  // Of config.json and model.safetensors in the folder. `longest`: the tokens of a sequence, at
  // most.
  Model(const std::filesystem::path& folder, kiln::Device device, std::int64_t longest);

  // The logits of the word after these tokens, which follow what the sequence has. One token is a
  // CUDA graph on a GPU.
  std::vector<float> forward(const std::vector<int>& tokens);

  const Config& config() const { return config_; }
  std::vector<std::string> variants() const;  // what was loaded

 private:
  struct Buffer {
    kiln::Tensor tensor;
    Memory memory;
  };
  struct Layer {
    kiln::Tensor norm, qkv, o, mlp_norm, k_pages, v_pages;
    kiln::Tensor gate, up, down;                          // of a plain MLP
    std::optional<kiln::layers::QuantizedMlp> quantized;  // or this
  };
  // What a step of `rows` tokens reads and writes.
  struct Step {
    std::int64_t rows;
    Buffer &embedded, &positions, &starts;                    // written by the program
    Buffer &hidden, &normed, &qkv, &attended, &out, &logits;  // by the calls
  };

  Buffer& make(kiln::DType dtype, std::initializer_list<std::int64_t> shape);
  kiln::Tensor weight(const std::string& name, std::initializer_list<std::int64_t> shape);
  const StoredTensor& stored(const std::string& name,
                             std::initializer_list<std::int64_t> shape) const;
  bool is_quantized(const std::string& linear) const;
  kiln::Tensor linear_weight(const std::string& linear, std::int64_t rows, std::int64_t columns);
  kiln::Tensor qkv_weight(const std::string& attention);
  kiln::Tensor head_weight();
  void load_mlp(const std::string& name, Layer& layer);
  Step make_step(std::int64_t rows);
  void write_inputs(const Step& step, const std::vector<int>& tokens);
  void enqueue(const Step& step, kiln::Stream stream);
  void attend(const Step& step, const Layer& layer, kiln::Stream stream);
  void run_mlp(const Step& step, const Layer& layer, const kiln::Tensor& residual,
               kiln::Stream stream);

  // An op. All share one scratch memory, since one runs after the other.
  template <class Arguments>
  void run(const kiln::Kernel& kernel, const Arguments& arguments, kiln::Stream stream) {
    const auto op = kernel.op<Arguments>();
    op.run(arguments, workspace_.reserve(op.workspace_bytes(arguments)), stream);
  }

  Config config_;
  kiln::Kernel norm_;
  kiln::Device device_;
  std::int64_t longest_;
  std::int64_t length_ = 0;  // tokens that the sequence has
  Safetensors file_;
  kiln::DType dtype_;
  Quantized quantized_;
  kiln::Kernel linear_, rotary_, attention_;
  std::optional<kiln::Kernel> mlp_;  // where one is plain
  kiln::OwnedWorkspace workspace_;
  std::deque<Buffer> buffers_;  // whose places stay
  std::vector<Layer> layers_;
  kiln::Tensor last_norm_, head_;
  const std::byte* embeddings_;
  Buffer *block_table_, *lengths_, *cos_, *sin_;
  Step one_;
  Queue queue_;
};
