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
};

void use(const kiln::Kernel& kernel, float* memory, void* scratch, CUstream_st* stream,
         const kiln::Tensor& x) {
  [[maybe_unused]] const kiln::Attribute attributes[] = {{}, 1, 2L, 7.0, "tanh"};
  auto layer = kernel.layer<kiln::layers::GegluMlp>({.gate = x, .up = x, .down = x});
  layer.forward(x, x, kiln::Workspace{});
  layer.forward(x, x, stream);
  layer.forward(x, x, kiln::Stream::of_handle(scratch));
  layer.forward(x, kiln::Tensor(memory, kiln::DType::kFloat32, {1, 1}, kiln::Device::cpu()));

  const kiln::TensorMaker bf16{kiln::DType::kBFloat16, kernel.device()};
  [[maybe_unused]] const std::size_t bytes = layer.workspace_bytes(bf16(nullptr, {8, 768}));
  layer.forward(bf16(scratch, {1, 1}), bf16(static_cast<const void*>(scratch), {1, 1}));

  // A layer keeps its words: what they were made from may go.
  using Attributes = kiln::ops::geglu_mlp::ForwardAttributes;
  const Attributes pinned{.approximate = Attributes::Approximate::kNone,
                          .kernels = std::string("wide")};
  const auto forward = kernel.op<kiln::ops::geglu_mlp::Forward>();
  forward.run({.x = x, .gate = x, .up = x, .down = x, .y = x, .attributes = pinned}, {}, stream);

  auto of_another_thread = layer;
  of_another_thread.forward(x, x);

#ifdef MISUSE_SCRATCH_AS_STREAM
  layer.forward(x, x, scratch);
#endif
#ifdef MISUSE_ARGUMENT_LEFT_OUT
  forward.run({.x = x, .gate = x, .up = x, .y = x});
#endif
#ifdef MISUSE_ARGUMENT_OF_NO_OP
  forward.run({.x = x, .gate = x, .up = x, .down = x, .z = x});
#endif
#ifdef MISUSE_ARGUMENTS_IN_OTHER_ORDER
  forward.run({.gate = x, .x = x, .up = x, .down = x, .y = x});
#endif
#ifdef MISUSE_ATTRIBUTE_OF_NO_VALUE
  [[maybe_unused]] const Attributes wrong{.approximate = Attributes::Approximate::kErf};
#endif
#ifdef MISUSE_ARGUMENTS_OF_OTHER_OP
  forward.run(kiln::ops::geglu_mlp::Geglu{.gate = x, .up = x, .out = x});
#endif
#ifdef MISUSE_FORWARD_OF_CONST_LAYER
  const auto& shared = layer;  // by several threads; the layer's own workspace is for one
  shared.forward(x, x);
#endif
#ifdef MISUSE_BOOL_ATTRIBUTE
  kiln::Attribute{true};
#endif
#ifdef MISUSE_LAYER_OF_NO_KERNEL
  kernel.layer<NoLayer>({});
#endif
#ifdef MISUSE_LAYER_OF_OTHER_WEIGHTS
  kernel.layer<kiln::layers::GegluMlp>(kiln::layers::SwigluMlp::Weights{});
#endif
#ifdef MISUSE_DLPACK_OF_TEMPORARY
  [[maybe_unused]] const DLTensor dangling = bf16(scratch, {1, 1}).dl();
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
