// SPDX-License-Identifier: Apache-2.0
//
// RmsNorm for LibTorch: a torch::nn::Module over the ops of rms-norm, whose gradients come from the
// package's own backward.
//
//   kiln::torch::RmsNorm norm(kiln::torch::RmsNormOptions(768));
//   torch::Tensor y = norm->forward(x);                // x: [..., 768]
//   auto [z, h] = norm->forward(x, residual);          // h = x + residual, rounded; z of h
//
// bfloat16, float16 and float32; a weight in another dtype is converted to that of x, as in Python.
// kiln/torch.hpp says what memory and which stream it takes. The kernel for a device is found at
// the first call there (get_kernel). Throws kiln::Error; a second derivative throws too. Threads:
// as torch::nn::Linear.
#pragma once

#include <cstdint>
#include <utility>

#include "kiln/ops/rms_norm.hpp"
#include "kiln/torch.hpp"

namespace kiln::torch {

class RmsNormOptions {
 public:
  using Attributes = ops::rms_norm::ForwardAttributes;

  RmsNormOptions(std::int64_t features) : features_(features) {}

  TORCH_ARG(std::int64_t, features) = 0;
  /// eps and offset: those of package.json.
  TORCH_ARG(Attributes, attributes) = {};
  /// Which kernel; its device is that of the tensors.
  TORCH_ARG(Request, request) = {.version = ops::rms_norm::kVersion};
};

namespace detail {

struct RmsNormSource : Kernels {
  explicit RmsNormSource(const RmsNormOptions& options)
      : Kernels(ops::rms_norm::kPackage, options.request()), attributes(options.attributes()) {}
  RmsNormOptions::Attributes attributes;
};

/// x, weight and the residual, which may be undefined, of rows -> y, and with a residual h.
class RmsNormFunction : public ::torch::autograd::Function<RmsNormFunction> {
 public:
  using Context = ::torch::autograd::AutogradContext;
  using Tensors = ::torch::autograd::variable_list;

  static Tensors forward(Context* context, const ::torch::Tensor& x, const ::torch::Tensor& weight,
                         const c10::optional<::torch::Tensor>& residual,
                         const c10::intrusive_ptr<RmsNormSource>& source) {
    const ::torch::Tensor y = ::torch::empty_like(x);
    const ::torch::Tensor h = residual ? ::torch::empty_like(x) : ::torch::Tensor();
    source->run<ops::rms_norm::Forward>(x, {.x = view(x),
                                            .weight = view(weight),
                                            .residual = residual ? view(*residual) : Tensor(),
                                            .y = view(y),
                                            .h_out = view(h),
                                            .attributes = source->attributes});
    context->save_for_backward({residual ? h : x, weight});
    context->saved_data["weight"] = weight.requires_grad();
    context->saved_data["residual"] = residual.has_value();
    context->saved_data["source"] = c10::IValue::make_capsule(source);
    return residual ? Tensors{y, h} : Tensors{y};
  }

  static Tensors backward(Context* context, const Tensors& grads) {
    refuse_second_derivative("rms norm");
    const auto saved = context->get_saved_variables();
    const ::torch::Tensor& h = saved[0];
    const ::torch::Tensor& weight = saved[1];
    const auto held = context->saved_data["source"].toCapsule();
    auto& source = static_cast<RmsNormSource&>(*held);
    const ::torch::Tensor grad_y =
        grads[0].defined() ? grads[0].contiguous() : ::torch::zeros_like(h);
    ::torch::Tensor grad_h = ::torch::empty_like(h);
    const ::torch::Tensor grad_weight =
        context->saved_data["weight"].toBool() ? ::torch::empty_like(weight) : ::torch::Tensor();
    source.run<ops::rms_norm::Backward>(h, {.grad_y = view(grad_y),
                                            .h = view(h),
                                            .weight = view(weight),
                                            .grad_h = view(grad_h),
                                            .grad_weight = view(grad_weight),
                                            .attributes = source.attributes});
    if (grads.size() > 1 && grads[1].defined()) grad_h = grad_h + grads[1];
    // LibTorch refuses the gradient of an input that was none. One tensor for two inputs could
    // become the grad() of two leaves, behind views without a copy.
    const bool has_residual = context->saved_data["residual"].toBool();
    return {grad_h, grad_weight, has_residual ? grad_h.clone() : ::torch::Tensor(),
            ::torch::Tensor()};
  }
};

}  // namespace detail

/// y = h / sqrt(mean(h^2) + eps) * (offset + weight), over the last dimension of h = x + residual.
class RmsNormImpl : public ::torch::nn::Module {
 public:
  explicit RmsNormImpl(RmsNormOptions options)
      : source_(c10::make_intrusive<detail::RmsNormSource>(options)) {
    weight = register_parameter(
        "weight", ::torch::full({options.features()}, 1.0 - options.attributes().offset));
  }

  ::torch::Tensor forward(const ::torch::Tensor& x) { return run(x, {})[0].reshape(x.sizes()); }

  /// residual: as x in shape, dtype and device.
  std::pair<::torch::Tensor, ::torch::Tensor> forward(const ::torch::Tensor& x,
                                                      const ::torch::Tensor& residual) {
    if (residual.sizes() != x.sizes()) {
      throw Error(ErrorCode::kInvalidCall, "rms norm: the residual has another shape than x");
    }
    const auto both = run(x, rows_of(residual));
    return {both[0].reshape(x.sizes()), both[1].reshape(x.sizes())};
  }

  ::torch::Tensor weight;  ///< [features]

 private:
  static ::torch::Tensor rows_of(const ::torch::Tensor& tensor) {
    return tensor.reshape({-1, tensor.size(-1)}).contiguous();
  }
  detail::RmsNormFunction::Tensors run(const ::torch::Tensor& x,
                                       const c10::optional<::torch::Tensor>& residual) {
    return detail::RmsNormFunction::apply(rows_of(x), weight.to(x.scalar_type()), residual,
                                          source_);
  }

  c10::intrusive_ptr<detail::RmsNormSource> source_;
};
TORCH_MODULE(RmsNorm);

}  // namespace kiln::torch
