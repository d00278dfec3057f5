// SPDX-License-Identifier: Apache-2.0
//
// GegluMlp and SwigluMlp for LibTorch: torch::nn::Modules over the typed layers of the packages,
// whose gradients come from the package's own backward. Header only, and nothing else of Kiln knows
// LibTorch: a program that includes it links LibTorch and kiln::kiln.
//
//   kiln::libtorch::GegluMlp mlp(kiln::libtorch::GatedMlpOptions{.in = 768, .hidden = 3072});
//   mlp->to(torch::kCUDA, torch::kBFloat16);
//   torch::Tensor y = mlp->forward(x);           // x: [..., 768]
//   torch::Tensor z = mlp->forward(norm(x), x);  // x + mlp(norm(x)), added before z is rounded
//
// bfloat16 and float16, on the CPU also float32. Memory comes from LibTorch's allocator. On a GPU
// work is enqueued on LibTorch's current stream, whose handle only CUDA's headers give: define
// KILN_LIBTORCH_CUDA where they and LibTorch's own CUDA library are; without it a GPU's tensor is
// refused. The kernel for a device is found at the first call there (get_kernel); call the layer
// once before it is captured in a CUDA graph. Throws kiln::Error; a second derivative throws too.
// Threads: as torch::nn::Linear.
#pragma once

#include "kiln/compiler.hpp"

#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kiln/kiln.hpp"
#include "kiln/layers/geglu_mlp.hpp"
#include "kiln/layers/swiglu_mlp.hpp"

#ifdef KILN_LIBTORCH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace kiln::libtorch {

/// gate, up: [hidden,in]; down: [in,hidden]; as torch::nn::Linear has them.
struct GatedMlpOptions {
  std::int64_t in = 0;
  std::int64_t hidden = 0;
  bool bias = false;
};

namespace detail {

inline Device kiln_device(const ::torch::Tensor& tensor) {
  if (tensor.is_cpu()) return Device::cpu();
  if (tensor.is_cuda()) return Device::cuda(tensor.get_device());
  throw Error(ErrorCode::kInvalidCall, "gated mlp: a tensor on " + tensor.device().str() +
                                           "; expected one on the CPU or a GPU of CUDA");
}

inline DType kiln_dtype(const ::torch::Tensor& tensor) {
  const ::torch::ScalarType type = tensor.scalar_type();
  if (type == ::torch::kFloat32) return DType::kFloat32;
  if (type == ::torch::kFloat16) return DType::kFloat16;
  if (type == ::torch::kBFloat16) return DType::kBFloat16;
  throw Error(ErrorCode::kInvalidCall, std::string("gated mlp: a tensor of ") +
                                           ::torch::toString(type) +
                                           "; expected Float, Half or BFloat16");
}

/// A view; an undefined tensor is none. Row-major: the caller has made it contiguous.
inline Tensor view(const ::torch::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const auto sizes = tensor.sizes();
  return {tensor.data_ptr(), kiln_dtype(tensor), std::span(sizes.data(), sizes.size()),
          kiln_device(tensor)};
}

inline void* current_stream(const ::torch::Tensor& tensor) {
  if (tensor.is_cpu()) return nullptr;
#ifdef KILN_LIBTORCH_CUDA
  return c10::cuda::getCurrentCUDAStream(tensor.get_device()).stream();
#else
  throw Error(ErrorCode::kUsage,
              "gated mlp: a tensor on a GPU, and this program was compiled without "
              "KILN_LIBTORCH_CUDA, so that LibTorch's stream is not known. Define it");
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

/// Where a module's kernels come from: one for each device that it was called on.
template <class Layer>
class Source {
 public:
  Source(Request request, typename Layer::Weights style)
      : request_(std::move(request)), style_(std::move(style)) {}

  /// gate, up, down and the three biases, of which any may be undefined.
  Layer layer(const std::array<::torch::Tensor, 6>& weights) {
    typename Layer::Weights views = style_;
    views.gate = view(weights[0]);
    views.up = view(weights[1]);
    views.down = view(weights[2]);
    views.gate_bias = view(weights[3]);
    views.up_bias = view(weights[4]);
    views.down_bias = view(weights[5]);
    return kernel(weights[0]).template layer<Layer>(std::move(views));
  }

 private:
  const Kernel& kernel(const ::torch::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    const int place = tensor.is_cpu() ? -1 : static_cast<int>(tensor.get_device());
    const auto found = kernels_.find(place);
    if (found != kernels_.end()) return found->second;
    Request request = request_;
    request.device = kiln_device(tensor);
    return kernels_.emplace(place, get_kernel(Layer::kPackage, request)).first->second;
  }

  Request request_;
  typename Layer::Weights style_;
  std::mutex mutex_;
  std::map<int, Kernel> kernels_;  // -1: the CPU's; a Kernel stays where it is
};

inline std::string words_of(const ::torch::Tensor& tensor) {
  std::string words = ::torch::toString(tensor.scalar_type());
  words += " [";
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (i > 0) words += ", ";
    words += std::to_string(tensor.size(i));
  }
  return words + "] on " + tensor.device().str();
}

/// The op sees rows: that the leading dimensions agree is seen here alone.
inline void check_residual(const ::torch::Tensor& residual, const ::torch::Tensor& x) {
  if (!residual.defined() ||
      (residual.sizes() == x.sizes() && residual.scalar_type() == x.scalar_type() &&
       residual.device() == x.device())) {
    return;
  }
  throw Error(ErrorCode::kInvalidCall, "gated mlp: residual is " + words_of(residual) +
                                           "; expected one like x, " + words_of(x));
}

/// x, gate, up, down, the three biases and the residual: what a call may have gradients of.
using Inputs = std::array<::torch::Tensor, 8>;

inline std::array<::torch::Tensor, 6> weights_of(const Inputs& inputs) {
  return {inputs[1], inputs[2], inputs[3], inputs[4], inputs[5], inputs[6]};
}

template <class Layer>
class Differentiable : public ::torch::autograd::Function<Differentiable<Layer>> {
 public:
  using Maybe = c10::optional<::torch::Tensor>;
  using Context = ::torch::autograd::AutogradContext;

  static ::torch::Tensor forward(Context* context, const ::torch::Tensor& x,
                                 const ::torch::Tensor& gate, const ::torch::Tensor& up,
                                 const ::torch::Tensor& down, const Maybe& gate_bias,
                                 const Maybe& up_bias, const Maybe& down_bias,
                                 const Maybe& residual,
                                 const std::shared_ptr<Source<Layer>>& source) {
    const auto given = [](const Maybe& tensor) { return tensor ? *tensor : ::torch::Tensor(); };
    const Inputs inputs = {
        x, gate, up, down, given(gate_bias), given(up_bias), given(down_bias), given(residual)};
    const Layer layer = source->layer(weights_of(inputs));
    const ::torch::Tensor y = ::torch::empty_like(x);
    const ::torch::Tensor gate_out = ::torch::empty({x.size(0), gate.size(0)}, x.options());
    const ::torch::Tensor up_out = ::torch::empty_like(gate_out);
    const Scratch scratch(layer.workspace_bytes(view(x)), x);
    layer.training_forward({view(x), view(inputs[7])}, view(y),
                           {.gate_out = view(gate_out), .up_out = view(up_out)}, scratch.workspace,
                           current_stream(x));
    context->save_for_backward({x, gate, up, down, inputs[4], inputs[5], gate_out, up_out});
    std::int64_t wanted = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined() && inputs[i].requires_grad()) wanted |= std::int64_t{1} << i;
    }
    context->saved_data["wanted"] = wanted;
    context->saved_data["source"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(source));
    return y;
  }

  static ::torch::autograd::variable_list backward(Context* context,
                                                   const ::torch::autograd::variable_list& grads) {
    if (::torch::GradMode::is_enabled()) {
      throw Error(ErrorCode::kUsage,
                  "gated mlp: a second derivative was asked for, and the package has none. Call "
                  "backward without create_graph");
    }
    const auto saved = context->get_saved_variables();
    const std::int64_t wanted = context->saved_data["wanted"].toInt();
    const auto held = context->saved_data["source"].toCapsule();
    const auto& source = static_cast<const Holder&>(*held).source;
    const ::torch::Tensor grad_y = grads[0].contiguous();
    const ::torch::Tensor& x = saved[0];
    const ::torch::Tensor& gate = saved[1];
    const auto is_wanted = [&](int i) { return (wanted >> i & 1) != 0; };
    const auto make = [&](int i, c10::IntArrayRef shape) {
      return is_wanted(i) ? ::torch::empty(shape, x.options()) : ::torch::Tensor();
    };
    // In one buffer, the gradients of gate and up are one product.
    ::torch::Tensor both;
    if (is_wanted(1) || is_wanted(2)) {
      both = ::torch::empty({2 * gate.size(0), gate.size(1)}, x.options());
    }
    const auto half = [&](int i) {
      return is_wanted(i) ? both.narrow(0, (i - 1) * gate.size(0), gate.size(0))
                          : ::torch::Tensor();
    };
    const Inputs made = {make(0, x.sizes()),
                         half(1),
                         half(2),
                         make(3, saved[3].sizes()),
                         make(4, {gate.size(0)}),
                         make(5, {gate.size(0)}),
                         make(6, {gate.size(1)}),
                         is_wanted(7) ? grads[0] : ::torch::Tensor()};
    const ::torch::autograd::variable_list results = {
        made[0], made[1], made[2], made[3], made[4], made[5], made[6], made[7], ::torch::Tensor()};
    if (wanted == std::int64_t{1} << 7) return results;  // the residual's alone: grad_y
    const Layer layer = source->layer({gate, saved[2], saved[3], saved[4], saved[5], {}});
    const typename Layer::Kept kept = {.gate_out = view(saved[6]), .up_out = view(saved[7])};
    const typename Layer::Gradients gradients = {.x = view(made[0]),
                                                 .gate = view(made[1]),
                                                 .up = view(made[2]),
                                                 .down = view(made[3]),
                                                 .gate_bias = view(made[4]),
                                                 .up_bias = view(made[5]),
                                                 .down_bias = view(made[6])};
    const Scratch scratch(layer.backward_workspace_bytes(view(x), kept, gradients), x);
    layer.backward(view(grad_y), view(x), kept, gradients, scratch.workspace, current_stream(x));
    return results;
  }

 private:
  struct Holder : ::torch::CustomClassHolder {
    explicit Holder(std::shared_ptr<Source<Layer>> held) : source(std::move(held)) {}
    std::shared_ptr<Source<Layer>> source;
  };
};

}  // namespace detail

/// y = (a(x gate^T + gate_bias) * f(x up^T + up_bias)) down^T + down_bias + residual; x: [..., in].
/// a and f are the package's. LayerType: layers::GegluMlp or layers::SwigluMlp.
template <class LayerType>
class GatedMlpImpl : public ::torch::nn::Module {
 public:
  using Style = typename LayerType::Weights;  ///< its options; its tensors are not looked at

  explicit GatedMlpImpl(GatedMlpOptions options, Style style = {}, Request request = {.version = 1})
      : source_(std::make_shared<detail::Source<LayerType>>(std::move(request), std::move(style))) {
    const auto weight = [&](const char* name, std::int64_t rows, std::int64_t columns) {
      return register_parameter(name, uniform({rows, columns}, columns));
    };
    gate = weight("gate", options.hidden, options.in);
    up = weight("up", options.hidden, options.in);
    down = weight("down", options.in, options.hidden);
    if (!options.bias) return;
    gate_bias = register_parameter("gate_bias", uniform({options.hidden}, options.in));
    up_bias = register_parameter("up_bias", uniform({options.hidden}, options.in));
    down_bias = register_parameter("down_bias", uniform({options.in}, options.hidden));
  }

  /// Shares the parameters of three linears.
  GatedMlpImpl(const ::torch::nn::Linear& gate_linear, const ::torch::nn::Linear& up_linear,
               const ::torch::nn::Linear& down_linear, Style style = {},
               Request request = {.version = 1})
      : source_(std::make_shared<detail::Source<LayerType>>(std::move(request), std::move(style))) {
    gate = register_parameter("gate", gate_linear->weight);
    up = register_parameter("up", up_linear->weight);
    down = register_parameter("down", down_linear->weight);
    if (gate_linear->bias.defined()) {
      gate_bias = register_parameter("gate_bias", gate_linear->bias);
    }
    if (up_linear->bias.defined()) up_bias = register_parameter("up_bias", up_linear->bias);
    if (down_linear->bias.defined()) {
      down_bias = register_parameter("down_bias", down_linear->bias);
    }
  }

  /// `residual`: as x in shape, dtype and device, or undefined. Added in float32, before y is
  /// rounded.
  ::torch::Tensor forward(const ::torch::Tensor& x, const ::torch::Tensor& residual = {}) {
    detail::check_residual(residual, x);
    const auto rows_of = [&](const ::torch::Tensor& tensor) {
      return tensor.defined() ? tensor.reshape({-1, x.size(-1)}).contiguous() : tensor;
    };
    const ::torch::Tensor rows = rows_of(x);
    detail::Inputs inputs = {rows,      gate,    up,        down,
                             gate_bias, up_bias, down_bias, rows_of(residual)};
    bool differentiable = false;
    for (::torch::Tensor& each : inputs) {
      if (!each.defined()) continue;
      each = each.contiguous();
      differentiable = differentiable || each.requires_grad();
    }
    ::torch::Tensor y;
    if (differentiable && ::torch::GradMode::is_enabled()) {
      using Maybe = typename detail::Differentiable<LayerType>::Maybe;
      const auto maybe = [](const ::torch::Tensor& tensor) {
        return tensor.defined() ? Maybe(tensor) : Maybe();
      };
      y = detail::Differentiable<LayerType>::apply(inputs[0], inputs[1], inputs[2], inputs[3],
                                                   maybe(inputs[4]), maybe(inputs[5]),
                                                   maybe(inputs[6]), maybe(inputs[7]), source_);
    } else {
      const LayerType layer = source_->layer(detail::weights_of(inputs));
      y = ::torch::empty_like(rows);
      const detail::Scratch scratch(layer.workspace_bytes(detail::view(rows)), rows);
      layer.forward({detail::view(rows), detail::view(inputs[7])}, detail::view(y),
                    scratch.workspace, detail::current_stream(rows));
    }
    return y.view(x.sizes());
  }

  ::torch::Tensor gate, up, down;                 ///< [hidden,in], [hidden,in], [in,hidden]
  ::torch::Tensor gate_bias, up_bias, down_bias;  ///< [hidden], [hidden], [in]; or undefined

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, ::torch::nn::AnyValue(::torch::Tensor())})  // for nn::Sequential

 private:
  /// As torch::nn::Linear begins: within 1 / sqrt(fan in).
  static ::torch::Tensor uniform(c10::IntArrayRef shape, std::int64_t fan_in) {
    const double bound = fan_in > 0 ? 1 / std::sqrt(static_cast<double>(fan_in)) : 0;
    return ::torch::empty(shape).uniform_(-bound, bound);
  }

  std::shared_ptr<detail::Source<LayerType>> source_;
};

/// (gelu(gate) * up) down^T, as Gemma has it; Style{.approximate = layers::kGeluErf} for the other.
class GegluMlpImpl : public GatedMlpImpl<layers::GegluMlp> {
 public:
  using GatedMlpImpl::GatedMlpImpl;
};

/// (silu(gate) * up) down^T, as Llama has it; Style{.activation = …} for the others.
class SwigluMlpImpl : public GatedMlpImpl<layers::SwigluMlp> {
 public:
  using GatedMlpImpl::GatedMlpImpl;
};

TORCH_MODULE(GegluMlp);
TORCH_MODULE(SwigluMlp);

}  // namespace kiln::libtorch
