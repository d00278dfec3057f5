// SPDX-License-Identifier: Apache-2.0
//
// Package: what a check knows of the package that it checks: its name, its gates and its typed
// layers, whose types are erased here. So one check serves all packages of the family.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gate.h"
#include "kiln/kernel.hpp"
#include "kiln/layers/gated_mlp.hpp"

namespace gated_mlp_test {

using gated_mlp::Gate;

/// Those of a layer of forward; a missing bias is Tensor{}.
struct MlpWeights {
  kiln::Tensor gate, up, down;
  kiln::Tensor gate_bias = {};
  kiln::Tensor up_bias = {};
  kiln::Tensor down_bias = {};
  bool saturates = false;  ///< overflow is saturate
  bool invariant = false;  ///< batch_invariant
  std::string kernels;     ///< pinned ones, as host/pins.h has them
};

/// What a forward reads beside its weights; a missing residual is Tensor{}.
struct MlpInput {
  kiln::Tensor x;
  kiln::Tensor residual = {};
};

/// Where a layer's backward adds gradients of weights.
struct MlpMainGradients {
  kiln::Tensor gate = {};
  kiln::Tensor up = {};
  kiln::Tensor down = {};
  kiln::Tensor gate_bias = {};
  kiln::Tensor up_bias = {};
  kiln::Tensor down_bias = {};
};

/// Where a layer's backward writes; what is Tensor{} is not computed.
struct MlpGradients {
  kiln::Tensor x = {};
  kiln::Tensor gate = {};
  kiln::Tensor up = {};
  kiln::Tensor down = {};
  kiln::Tensor gate_bias = {};
  kiln::Tensor up_bias = {};
  kiln::Tensor down_bias = {};
  MlpMainGradients main = {};
};

/// What training_forward keeps; Tensor{}: backward computes it again.
struct MlpKept {
  kiln::Tensor gate_out = {};
  kiln::Tensor up_out = {};
};

struct MlpLayer {
  std::function<std::size_t(const kiln::Tensor& x)> workspace_bytes;
  std::function<void(const MlpInput&, const kiln::Tensor& y, kiln::Workspace, void* stream)>
      forward;
  std::function<std::size_t(const kiln::Tensor& x, const MlpKept&)> training_workspace_bytes;
  std::function<void(const MlpInput&, const kiln::Tensor& y, const MlpKept&, kiln::Workspace,
                     void* stream)>
      training_forward;
  std::function<std::size_t(const kiln::Tensor& grad_y, const kiln::Tensor& x, const MlpKept&,
                            const MlpGradients&)>
      backward_workspace_bytes;
  std::function<void(const kiln::Tensor& grad_y, const kiln::Tensor& x, const MlpKept&,
                     const MlpGradients&, kiln::Workspace, void* stream)>
      backward;
};

struct GatedLayer {
  std::function<void(const kiln::Tensor& gate, const kiln::Tensor& up, const kiln::Tensor& out,
                     void* stream)>
      forward;
  std::function<void(const kiln::Tensor& grad_out, const kiln::Tensor& gate, const kiln::Tensor& up,
                     const kiln::Tensor& grad_gate, const kiln::Tensor& grad_up, void* stream)>
      backward;
};

/// What the package must refuse, with a text that has `word` in it; on tensors without rows.
struct Refusal {
  std::string what;
  std::string word;
  std::function<void(const kiln::Kernel&)> call;
};

struct Package {
  std::string name;
  int version = 0;
  std::vector<Gate> gates;  ///< two or more; the first is the layers' default
  std::function<MlpLayer(const kiln::Kernel&, const MlpWeights&, Gate)> mlp;
  std::function<GatedLayer(const kiln::Kernel&, Gate)> gated;
  std::vector<Refusal> refusals;
};

/// A typed layer's gradients.
template <class Layer>
typename Layer::Gradients gradients_of(const MlpGradients& gradients) {
  return {.x = gradients.x,
          .gate = gradients.gate,
          .up = gradients.up,
          .down = gradients.down,
          .gate_bias = gradients.gate_bias,
          .up_bias = gradients.up_bias,
          .down_bias = gradients.down_bias,
          .main = {.gate = gradients.main.gate,
                   .up = gradients.main.up,
                   .down = gradients.main.down,
                   .gate_bias = gradients.main.gate_bias,
                   .up_bias = gradients.main.up_bias,
                   .down_bias = gradients.main.down_bias}};
}

template <class Layer>
MlpLayer erase_mlp(Layer layer) {
  const auto held = std::make_shared<Layer>(std::move(layer));
  return {[held](const kiln::Tensor& x) { return held->workspace_bytes(x); },
          [held](const MlpInput& input, const kiln::Tensor& y, kiln::Workspace workspace,
                 void* stream) {
            held->forward({input.x, input.residual}, y, workspace, kiln::Stream::of_handle(stream));
          },
          [held](const kiln::Tensor& x, const MlpKept& kept) {
            return held->training_workspace_bytes(x, {kept.gate_out, kept.up_out});
          },
          [held](const MlpInput& input, const kiln::Tensor& y, const MlpKept& kept,
                 kiln::Workspace workspace, void* stream) {
            held->training_forward({input.x, input.residual}, y, {kept.gate_out, kept.up_out},
                                   workspace, kiln::Stream::of_handle(stream));
          },
          [held](const kiln::Tensor& grad_y, const kiln::Tensor& x, const MlpKept& kept,
                 const MlpGradients& gradients) {
            return held->backward_workspace_bytes(grad_y, x, {kept.gate_out, kept.up_out},
                                                  gradients_of<Layer>(gradients));
          },
          [held](const kiln::Tensor& grad_y, const kiln::Tensor& x, const MlpKept& kept,
                 const MlpGradients& gradients, kiln::Workspace workspace, void* stream) {
            held->backward(grad_y, x, {kept.gate_out, kept.up_out}, gradients_of<Layer>(gradients),
                           workspace, kiln::Stream::of_handle(stream));
          }};
}

template <class Forward, class Backward>
GatedLayer erase_gated(const kiln::Kernel& kernel,
                       const decltype(Forward::attributes)& attributes) {
  return {[=, op = kernel.op<Forward>()](const kiln::Tensor& gate, const kiln::Tensor& up,
                                         const kiln::Tensor& out, void* stream) {
            op.run({.gate = gate, .up = up, .out = out, .attributes = attributes}, {},
                   kiln::Stream::of_handle(stream));
          },
          [=, op = kernel.op<Backward>()](const kiln::Tensor& grad_out, const kiln::Tensor& gate,
                                          const kiln::Tensor& up, const kiln::Tensor& grad_gate,
                                          const kiln::Tensor& grad_up, void* stream) {
            op.run({.grad_out = grad_out,
                    .gate = gate,
                    .up = up,
                    .grad_gate = grad_gate,
                    .grad_up = grad_up,
                    .attributes = attributes},
                   {}, kiln::Stream::of_handle(stream));
          }};
}

/// A typed layer's weights, all but the attributes that its package alone has.
template <class Layer>
typename Layer::Weights weights_of(const MlpWeights& weights) {
  typename Layer::Weights typed = {.gate = weights.gate,
                                   .up = weights.up,
                                   .down = weights.down,
                                   .gate_bias = weights.gate_bias,
                                   .up_bias = weights.up_bias,
                                   .down_bias = weights.down_bias};
  if (weights.saturates) typed.attributes.overflow = Layer::Overflow::kSaturate;
  typed.attributes.batch_invariant = weights.invariant;
  typed.attributes.kernels = weights.kernels;
  return typed;
}

/// The check's command line, for the program of one package. Exit status 0: cases ran, none failed.
int check_main(int argc, char** argv, const Package& package);

}  // namespace gated_mlp_test
