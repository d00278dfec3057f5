// SPDX-License-Identifier: Apache-2.0
//
// What the public headers refuse to compile, one mistake a word, and, read without any of them,
// what is right in its place. See CMakeLists.txt.
#include <kiln/kiln.hpp>
#include <kiln/layers/geglu_mlp.hpp>
#include <kiln/layers/swiglu_mlp.hpp>
#include <string>

#ifdef MISUSE_INTERNAL_HEADER
#include <resolve/resolve.hpp>
#endif

struct NoLayer {
  struct Weights {};
  NoLayer(const kiln::Kernel& kernel, Weights weights);
};

void use(const kiln::Kernel& kernel, float* memory, const kiln::Tensor& x) {
  [[maybe_unused]] const kiln::Attribute attributes[] = {{}, 1, 2L, 7.0, "tanh"};
  auto layer = kernel.layer<kiln::layers::GegluMlp>({.gate = x, .up = x, .down = x});
  layer.forward(x, x, kiln::Workspace{});
  layer.forward(x, kiln::Tensor(memory, kiln::DType::kFloat32, {1, 1}, kiln::Device::cpu()));

  // A layer keeps its words: what they were made from may go.
  [[maybe_unused]] const kiln::layers::Geglu::Weights words{.approximate = std::string("tanh")};
  [[maybe_unused]] const kiln::layers::Swiglu::Weights more{.activation = std::string("relu")};

#ifdef MISUSE_FORWARD_OF_CONST_LAYER
  const auto& shared = layer;  // by several threads; the layer's own workspace is for one
  shared.forward(x, x);
#endif
#ifdef MISUSE_BOOL_ATTRIBUTE
  kiln::Attribute{true};
#endif
#ifdef MISUSE_LAYER_OF_NO_PACKAGE
  kernel.layer<NoLayer>({});
#endif
#ifdef MISUSE_LAYER_OF_OTHER_WEIGHTS
  kernel.layer<kiln::layers::GegluMlp>(kiln::layers::SwigluMlp::Weights{});
#endif
#ifdef MISUSE_TENSOR_WITHOUT_DEVICE
  kiln::Tensor(memory, kiln::DType::kFloat32, {1, 1});
#endif
#ifdef MISUSE_INTERNAL_RESOLVE
  kiln::Selection{};
#endif
#ifdef MISUSE_INTERNAL_PARSE
  kiln::parse_version("12.9");
#endif
}
