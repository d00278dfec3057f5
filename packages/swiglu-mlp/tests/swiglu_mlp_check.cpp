// SPDX-License-Identifier: Apache-2.0
//
// swiglu_mlp_check: the numeric check of swiglu-mlp, see gated-mlp's check_main.cpp.
#include "kiln/layers/swiglu_mlp.hpp"

#include <limits>

#include "package.hpp"
#include "reference.hpp"

namespace {

using gated_mlp_test::Gate;
using gated_mlp_test::kCheckedLimit;
using gated_mlp_test::MlpLayer;
using gated_mlp_test::MlpWeights;
using kiln::layers::SwigluMlp;
using kiln::ops::swiglu_mlp::Swiglu;

template <class Attributes>
typename Attributes::Activation activation(Gate gate) {
  using Activation = typename Attributes::Activation;
  switch (gate) {
    case Gate::kRelu:
      return Activation::kRelu;
    case Gate::kSigmoid:
      return Activation::kSigmoid;
    case Gate::kSiluClamped:
      return Activation::kSiluClamped;
    default:
      return Activation::kSilu;
  }
}

MlpLayer make_mlp(const kiln::Kernel& kernel, const MlpWeights& weights, Gate gate) {
  SwigluMlp::Weights typed = gated_mlp_test::weights_of<SwigluMlp>(weights);
  typed.attributes.activation = activation<SwigluMlp::Attributes>(gate);
  typed.attributes.limit = kCheckedLimit;
  return gated_mlp_test::erase_mlp(kernel.layer<SwigluMlp>(typed));
}

void run_empty(const kiln::Kernel& kernel, const char* activation, double limit) {
  const kiln::Tensor none(nullptr, kiln::DType::kBFloat16, {0, 8}, kernel.device());
  const kiln::Tensor tensors[] = {none, none, none};
  const kiln::Attribute attributes[] = {kiln::Attribute(activation), kiln::Attribute(limit)};
  kernel.op("swiglu").run(tensors, attributes, {});
}

}  // namespace

int main(int argc, char** argv) {
  gated_mlp_test::Package package = {
      .name = "swiglu-mlp",
      .version = 1,
      .gates = {Gate::kSilu, Gate::kRelu, Gate::kSigmoid, Gate::kSiluClamped},
      .mlp = make_mlp,
      .gated =
          [](const kiln::Kernel& kernel, Gate gate) {
            using Attributes = decltype(Swiglu::attributes);
            return gated_mlp_test::erase_gated<Swiglu, kiln::ops::swiglu_mlp::SwigluBackward>(
                kernel, {.activation = activation<Attributes>(gate), .limit = kCheckedLimit});
          },
      .refusals = {}};
  package.refusals.push_back(
      {"an unknown activation", "activation",
       [](const kiln::Kernel& kernel) { run_empty(kernel, "tanh", kCheckedLimit); }});
  for (const double limit : {0.0, -7.0, std::numeric_limits<double>::quiet_NaN()}) {
    package.refusals.push_back(
        {"a limit of " + std::to_string(limit), "limit is",
         [limit](const kiln::Kernel& kernel) { run_empty(kernel, "silu", limit); }});
  }
  return gated_mlp_test::check_main(argc, argv, package);
}
