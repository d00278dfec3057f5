// SPDX-License-Identifier: Apache-2.0
//
// Kiln beside LibTorch: tensors, streams and scratch memory of LibTorch as those of Kiln, and a
// kernel for each device that a module is called on. A package's own modules are made of it:
// kiln/torch/<package>.hpp. Header only, and nothing else of Kiln knows LibTorch: a program links
// kiln::torch, or kiln::kiln and LibTorch.
//
//   const kiln::torch::Scratch scratch(op.workspace_bytes(arguments), x);
//   op.run({.x = kiln::torch::view(x), .y = kiln::torch::view(y)}, scratch.workspace,
//          kiln::torch::current_stream(x));
//
// Memory comes from LibTorch's allocator. On a GPU work is enqueued on LibTorch's current stream,
// whose handle only CUDA's headers give: define KILN_TORCH_CUDA where they and LibTorch's own CUDA
// library are (kiln::torch does); without it a GPU's tensor is refused. In a file that says `using
// namespace kiln`, `torch` means two namespaces: say `::torch`.
//
// A call is invisible to LibTorch: where its operators are traced or transformed, it is refused.
//
// Threads: everything here may be called from several threads at once.
#pragma once

#include "kiln/compiler.hpp"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/TracerMode.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kiln/kiln.hpp"

#ifdef KILN_TORCH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace kiln::torch {

namespace nn = ::torch::nn;  // LibTorch's macros say torch::nn, also in this namespace

/// Throws kInvalidCall for one that is neither on the CPU nor on a GPU of CUDA.
inline Device kiln_device(const ::torch::Tensor& tensor) {
  if (tensor.is_cpu()) return Device::cpu();
  if (tensor.is_cuda()) return Device::cuda(tensor.get_device());
  throw Error(ErrorCode::kInvalidCall, "torch: a tensor on " + tensor.device().str() +
                                           "; expected one on the CPU or a GPU of CUDA");
}

/// Throws kInvalidCall for a type that Kiln has no word for: complex and quantized ones.
inline DType kiln_dtype(const ::torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ::torch::kFloat32:
      return DType::kFloat32;
    case ::torch::kFloat16:
      return DType::kFloat16;
    case ::torch::kBFloat16:
      return DType::kBFloat16;
    case ::torch::kFloat64:
      return DType::kFloat64;
    case ::torch::kInt8:
      return DType::kInt8;
    case ::torch::kInt16:
      return DType::kInt16;
    case ::torch::kInt32:
      return DType::kInt32;
    case ::torch::kInt64:
      return DType::kInt64;
    case ::torch::kUInt8:
      return DType::kUInt8;
    case ::torch::kBool:
      return DType::kBool;
    default:
      throw Error(ErrorCode::kInvalidCall, std::string("torch: a tensor of ") +
                                               ::torch::toString(tensor.scalar_type()) +
                                               "; Kiln has no such dtype");
  }
}

/// For a message: "Float [4, 768] on cpu".
inline std::string words_of(const ::torch::Tensor& tensor) {
  std::string words = ::torch::toString(tensor.scalar_type());
  words += " [";
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (i > 0) words += ", ";
    words += std::to_string(tensor.size(i));
  }
  return words + "] on " + tensor.device().str();
}

/// Throws kInvalidCall for a tensor that means more than its memory, and where LibTorch follows its
/// operators, of which an op of Kiln is none: what it keeps would be without the op, or without its
/// gradient. An operator of TORCH_LIBRARY, which LibTorch follows as a whole, may call Kiln then.
inline void check_plain(const ::torch::Tensor& tensor) {
  const auto refuse = [](const std::string& words) {
    throw Error(ErrorCode::kInvalidCall, "torch: " + words);
  };
  if (tensor.layout() != ::torch::kStrided || tensor.is_nested() ||
      at::isTensorSubclassLike(tensor) ||
      tensor.key_set().has(c10::DispatchKey::Functionalize)) {  // LibTorch 1.13 has it apart
    refuse(
        "a tensor is not a plain one (sparse, nested, of a transform or a subclass), or a "
        "TorchDispatchMode follows LibTorch's operators, and an op of Kiln is not one of them");
  }
  if (at::tracer::impl::is_dispatch_enabled()) {
    refuse(
        "torch.jit traces it, and an op of Kiln is not one of LibTorch's: the trace would keep its "
        "result as a number that never changes. Call Kiln in an operator of TORCH_LIBRARY");
  }
  if (tensor._fw_grad(0).defined()) {  // LibTorch has no other level
    refuse("forward-mode gradients are computed, and none flows through an op of Kiln");
  }
  if (tensor.is_neg()) {
    refuse(
        "a tensor whose negative bit is set: its memory holds other signs. Pass what resolve_neg() "
        "gives");
  }
  if (tensor._is_zerotensor() || (tensor.data_ptr() == nullptr && tensor.numel() > 0)) {
    refuse(
        "a tensor without memory: a zero tensor, as forward-mode gradients have them, or one whose "
        "storage was freed");
  }
}

/// A view, with the tensor's strides: the op refuses those that it does not take. Tensor{} of an
/// undefined tensor. Throws what the checks above throw.
inline Tensor view(const ::torch::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const Device device = kiln_device(tensor);
  const DType dtype = kiln_dtype(tensor);
  check_plain(tensor);
  const auto sizes = tensor.sizes();
  const Tensor compact(tensor.data_ptr(), dtype, std::span(sizes.data(), sizes.size()), device);
  DLTensor dl = compact.dl();
  dl.strides = const_cast<std::int64_t*>(tensor.strides().data());  // DLPack has no const
  return Tensor(dl);
}

/// LibTorch's current stream on the tensor's device.
inline Stream current_stream(const ::torch::Tensor& tensor) {
  if (tensor.is_cpu()) return {};
#ifdef KILN_TORCH_CUDA
  return c10::cuda::getCurrentCUDAStream(tensor.get_device()).stream();
#else
  throw Error(ErrorCode::kUsage,
              "torch: a tensor on a GPU, and this program was compiled without KILN_TORCH_CUDA, so "
              "that LibTorch's stream is not known. Define it, or link kiln::torch");
#endif
}

/// A workspace of LibTorch's memory, and that memory; 256-byte aligned on the CPU too.
struct Scratch {
  Scratch(std::size_t bytes, const ::torch::Tensor& like)
      : memory(::torch::empty({static_cast<std::int64_t>(bytes + kAlignment)},
                              like.options().dtype(::torch::kUInt8).requires_grad(false))) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data_ptr());
    workspace = {reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment),
                 bytes};
  }
  static constexpr std::size_t kAlignment = 256;
  ::torch::Tensor memory;
  Workspace workspace;
};

/// The kernels of one request, one for each device that is asked for: got at the first call there.
/// Or of a class that derives from it and says how a module calls them; an autograd function keeps
/// it for its backward: context->saved_data[…] = c10::IValue::make_capsule(source).
class Kernels : public ::torch::CustomClassHolder {
 public:
  Kernels(std::string_view package, Request request)
      : package_(package), request_(std::move(request)) {}

  /// That of the tensor's device. Throws what get_kernel throws.
  const Kernel& of(const ::torch::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    const int place = tensor.is_cpu() ? kCpu : static_cast<int>(tensor.get_device());
    const auto found = kernels_.find(place);
    if (found != kernels_.end()) return found->second;
    Request request = request_;
    request.device = kiln_device(tensor);
    return kernels_.emplace(place, get_kernel(package_, request)).first->second;
  }

  /// Runs an op, kiln::ops::…, where `like` is, on LibTorch's current stream and in its memory.
  template <class Arguments>
  void run(const ::torch::Tensor& like, const Arguments& arguments) {
    const TypedOp<Arguments> op = of(like).op<Arguments>();
    const Scratch scratch(op.workspace_bytes(arguments), like);
    op.run(arguments, scratch.workspace, current_stream(like));
  }

 private:
  static constexpr int kCpu = -1;
  std::string package_;
  Request request_;
  std::mutex mutex_;
  std::map<int, Kernel> kernels_;  // by the GPU's number; a Kernel stays where it is
};

/// For an input whose gradient is another tensor, too, before a view of it is taken: LibTorch makes
/// what a view of a leaf is given its grad() without a copy, so that two tensors had one memory.
inline ::torch::Tensor with_a_gradient_of_its_own(const ::torch::Tensor& residual) {
  const bool is_taken = residual.defined() && residual.is_leaf() && residual.requires_grad() &&
                        ::torch::GradMode::is_enabled();
  return is_taken ? residual * 1 : residual;
}

/// For the backward of a package that has no derivative of its gradients. `what`: "rms norm".
inline void refuse_second_derivative(const std::string& what) {
  if (!::torch::GradMode::is_enabled()) return;
  throw Error(ErrorCode::kUsage, what +
                                     ": a second derivative was asked for, and the package has "
                                     "none. Call backward without create_graph");
}

}  // namespace kiln::torch
