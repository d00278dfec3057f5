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
using kiln::layers::Swiglu;
using kiln::layers::SwigluMlp;

MlpLayer make_mlp(const kiln::Kernel& kernel, const MlpWeights& weights, Gate gate) {
  SwigluMlp::Weights typed = gated_mlp_test::weights_of<SwigluMlp>(weights);
  typed.activation = name_of(gate);
  typed.limit = kCheckedLimit;
  return gated_mlp_test::make_layer<SwigluMlp>(kernel, typed, weights.kernels);
}

void run_empty(const kiln::Kernel& kernel, Swiglu::Weights options) {
  const kiln::Tensor none(nullptr, kiln::DType::kBFloat16, {0, 8}, kernel.device());
  kernel.layer<Swiglu>(options).forward(none, none, none);
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
            return gated_mlp_test::erase_gated(
                kernel.layer<Swiglu>({.activation = name_of(gate), .limit = kCheckedLimit}));
          },
      .refusals = {}};
  package.refusals.push_back(
      {"an unknown activation", "activation",
       [](const kiln::Kernel& kernel) { run_empty(kernel, {.activation = "tanh"}); }});
  for (const double limit : {0.0, -7.0, std::numeric_limits<double>::quiet_NaN()}) {
    package.refusals.push_back(
        {"a limit of " + std::to_string(limit), "limit is",
         [limit](const kiln::Kernel& kernel) { run_empty(kernel, {.limit = limit}); }});
  }
  return gated_mlp_test::check_main(argc, argv, package);
}
