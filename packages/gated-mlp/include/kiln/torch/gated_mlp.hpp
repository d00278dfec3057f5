// SPDX-License-Identifier: Apache-2.0
//
// GatedMlp for LibTorch: a torch::nn::Module over the layer of a package with gated MLPs, whose
// gradients come from the package's own backward. kiln/torch/geglu_mlp.hpp has GegluMlp,
// kiln/torch/swiglu_mlp.hpp has SwigluMlp.
//
//   kiln::torch::GegluMlp mlp(kiln::torch::GegluMlpOptions(768, 3072).bias(true));
//   mlp->to(torch::kCUDA, torch::kBFloat16);
//   torch::Tensor y = mlp->forward(x);           // x: [..., 768]
//   torch::Tensor z = mlp->forward(norm(x), x);  // x + mlp(norm(x)), added before z is rounded
//
// bfloat16 and float16, on the CPU also float32. kiln/torch.hpp says what memory and which stream
// it takes. The kernel for a device is found at the first call there (get_kernel); call the layer
// once before it is captured in a CUDA graph. Throws kiln::Error; a second derivative throws too.
// Threads: as torch::nn::Linear, whose forward may be called from several threads while nobody
// changes its parameters.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "kiln/torch.hpp"

namespace kiln::torch {

/// Of a module over Layer, layers::GegluMlp or layers::SwigluMlp, in LibTorch's manner:
/// GegluMlpOptions(768, 3072).bias(true).
template <class Layer>
class GatedMlpOptions {
 public:
  using Attributes = typename Layer::Attributes;

  GatedMlpOptions() = default;
  GatedMlpOptions(std::int64_t in, std::int64_t hidden) : in_(in), hidden_(hidden) {}

  /// gate, up: [hidden,in]; down: [in,hidden]; as torch::nn::Linear has them.
  TORCH_ARG(std::int64_t, in) = 0;
  TORCH_ARG(std::int64_t, hidden) = 0;
  /// Three of them: [hidden], [hidden], [in].
  TORCH_ARG(bool, bias) = false;
  /// How it computes: those of package.json.
  TORCH_ARG(Attributes, attributes) = {};
  /// Which kernel; its device is that of the tensors.
  TORCH_ARG(Request, request) = {.version = Layer::kVersion};
};

namespace detail {

/// Where a module's layers come from.
template <class Layer>
class Source : public Kernels {
 public:
  Source(Request request, typename Layer::Attributes attributes)
      : Kernels(Layer::kPackage, std::move(request)), attributes_(std::move(attributes)) {}

  /// gate, up, down and the three biases, of which any may be undefined.
  Layer layer(const std::array<::torch::Tensor, 6>& weights) {
    return of(weights[0])
        .template layer<Layer>({.gate = view(weights[0]),
                                .up = view(weights[1]),
                                .down = view(weights[2]),
                                .gate_bias = view(weights[3]),
                                .up_bias = view(weights[4]),
                                .down_bias = view(weights[5]),
                                .attributes = attributes_});
  }

 private:
  typename Layer::Attributes attributes_;
};

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
                                 const c10::intrusive_ptr<Source<Layer>>& source) {
    const auto given = [](const Maybe& tensor) { return tensor ? *tensor : ::torch::Tensor(); };
    const Inputs inputs = {
        x, gate, up, down, given(gate_bias), given(up_bias), given(down_bias), given(residual)};
    const Layer layer = source->layer(weights_of(inputs));
    const ::torch::Tensor y = ::torch::empty_like(x);
    const ::torch::Tensor gate_out = ::torch::empty({x.size(0), gate.size(0)}, x.options());
    const ::torch::Tensor up_out = ::torch::empty_like(gate_out);
    const typename Layer::Kept kept = {.gate_out = view(gate_out), .up_out = view(up_out)};
    const Scratch scratch(layer.training_workspace_bytes(view(x), kept), x);
    layer.training_forward({view(x), view(inputs[7])}, view(y), kept, scratch.workspace,
                           current_stream(x));
    context->save_for_backward({x, gate, up, down, inputs[4], inputs[5], gate_out, up_out});
    std::int64_t wanted = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined() && inputs[i].requires_grad()) wanted |= std::int64_t{1} << i;
    }
    context->saved_data["wanted"] = wanted;
    context->saved_data["source"] = c10::IValue::make_capsule(source);
    return y;
  }

  static ::torch::autograd::variable_list backward(Context* context,
                                                   const ::torch::autograd::variable_list& grads) {
    refuse_second_derivative("gated mlp");
    const auto saved = context->get_saved_variables();
    const std::int64_t wanted = context->saved_data["wanted"].toInt();
    const auto held = context->saved_data["source"].toCapsule();
    auto& source = static_cast<Source<Layer>&>(*held);
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
    const Layer layer = source.layer({gate, saved[2], saved[3], saved[4], saved[5], {}});
    const typename Layer::Kept kept = {.gate_out = view(saved[6]), .up_out = view(saved[7])};
    const typename Layer::Gradients gradients = {.x = view(made[0]),
                                                 .gate = view(made[1]),
                                                 .up = view(made[2]),
                                                 .down = view(made[3]),
                                                 .gate_bias = view(made[4]),
                                                 .up_bias = view(made[5]),
                                                 .down_bias = view(made[6])};
    const Scratch scratch(layer.backward_workspace_bytes(view(grad_y), view(x), kept, gradients),
                          x);
    layer.backward(view(grad_y), view(x), kept, gradients, scratch.workspace, current_stream(x));
    return results;
  }
};

}  // namespace detail

/// y = (a(x gate^T + gate_bias) * f(x up^T + up_bias)) down^T + down_bias + residual; x: [..., in].
/// a and f are the package's. LayerType: layers::GegluMlp or layers::SwigluMlp.
template <class LayerType>
class GatedMlpImpl : public ::torch::nn::Module {
 public:
  using Options = GatedMlpOptions<LayerType>;

  explicit GatedMlpImpl(Options an_options) : GatedMlpImpl(std::move(an_options), nullptr) {
    const auto weight = [&](const char* name, std::int64_t rows, std::int64_t columns) {
      return register_parameter(name, uniform({rows, columns}, columns));
    };
    const std::int64_t in = options.in();
    const std::int64_t hidden = options.hidden();
    gate = weight("gate", hidden, in);
    up = weight("up", hidden, in);
    down = weight("down", in, hidden);
    if (!options.bias()) return;
    gate_bias = register_parameter("gate_bias", uniform({hidden}, in));
    up_bias = register_parameter("up_bias", uniform({hidden}, in));
    down_bias = register_parameter("down_bias", uniform({in}, hidden));
  }

  /// Shares the parameters of three linears, which say what `in`, `hidden` and `bias` are.
  GatedMlpImpl(const ::torch::nn::Linear& gate_linear, const ::torch::nn::Linear& up_linear,
               const ::torch::nn::Linear& down_linear, Options an_options = {})
      : GatedMlpImpl(std::move(an_options), nullptr) {
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
    options.in(gate.size(1)).hidden(gate.size(0)).bias(gate_bias.defined());
  }

  /// `residual`: as x in shape, dtype and device, or undefined. Added in float32, before y is
  /// rounded.
  ::torch::Tensor forward(const ::torch::Tensor& x, const ::torch::Tensor& residual = {}) {
    detail::check_residual(residual, x);
    const auto rows_of = [&](const ::torch::Tensor& tensor) {
      return tensor.defined() ? tensor.reshape({-1, x.size(-1)}).contiguous() : tensor;
    };
    const ::torch::Tensor rows = rows_of(x);
    detail::Inputs inputs = {
        rows,      gate,    up,        down,
        gate_bias, up_bias, down_bias, rows_of(with_a_gradient_of_its_own(residual))};
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
      const Scratch scratch(layer.workspace_bytes(view(rows)), rows);
      layer.forward({view(rows), view(inputs[7])}, view(y), scratch.workspace,
                    current_stream(rows));
    }
    return y.view(x.sizes());
  }

  Options options;
  ::torch::Tensor gate, up, down;                 ///< [hidden,in], [hidden,in], [in,hidden]
  ::torch::Tensor gate_bias, up_bias, down_bias;  ///< [hidden], [hidden], [in]; or undefined

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, ::torch::nn::AnyValue(::torch::Tensor())})  // for nn::Sequential

 private:
  GatedMlpImpl(Options an_options, std::nullptr_t)
      : options(std::move(an_options)),
        source_(c10::make_intrusive<detail::Source<LayerType>>(options.request(),
                                                               options.attributes())) {}

  /// As torch::nn::Linear begins: within 1 / sqrt(fan in).
  static ::torch::Tensor uniform(c10::IntArrayRef shape, std::int64_t fan_in) {
    const double bound = fan_in > 0 ? 1 / std::sqrt(static_cast<double>(fan_in)) : 0;
    return ::torch::empty(shape).uniform_(-bound, bound);
  }

  c10::intrusive_ptr<detail::Source<LayerType>> source_;
};

}  // namespace kiln::torch
