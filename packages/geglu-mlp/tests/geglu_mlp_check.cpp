// SPDX-License-Identifier: Apache-2.0
//
// geglu_mlp_check: the numeric check of geglu-mlp, see gated-mlp's check_main.cpp.
#include "kiln/layers/geglu_mlp.hpp"

#include "package.hpp"

namespace {

using gated_mlp_test::Gate;
using gated_mlp_test::MlpLayer;
using gated_mlp_test::MlpWeights;
using kiln::layers::GegluMlp;
using kiln::ops::geglu_mlp::Geglu;

template <class Attributes>
typename Attributes::Approximate approximate(Gate gate) {
  using Approximate = typename Attributes::Approximate;
  return gate == Gate::kGelu ? Approximate::kNone : Approximate::kTanh;
}

MlpLayer make_mlp(const kiln::Kernel& kernel, const MlpWeights& weights, Gate gate) {
  GegluMlp::Weights typed = gated_mlp_test::weights_of<GegluMlp>(weights);
  typed.attributes.approximate = approximate<GegluMlp::Attributes>(gate);
  return gated_mlp_test::erase_mlp(kernel.layer<GegluMlp>(typed));
}

}  // namespace

int main(int argc, char** argv) {
  const gated_mlp_test::Package package = {
      .name = "geglu-mlp",
      .version = 1,
      .gates = {Gate::kGeluTanh, Gate::kGelu},
      .mlp = make_mlp,
      .gated =
          [](const kiln::Kernel& kernel, Gate gate) {
            using Attributes = decltype(Geglu::attributes);
            return gated_mlp_test::erase_gated<Geglu, kiln::ops::geglu_mlp::GegluBackward>(
                kernel, {.approximate = approximate<Attributes>(gate)});
          },
      .refusals = {
          {"an unknown approximate", "approximate", [](const kiln::Kernel& kernel) {
             const kiln::Tensor none(nullptr, kiln::DType::kBFloat16, {0, 8}, kernel.device());
             const kiln::Tensor tensors[] = {none, none, none};
             const kiln::Attribute attributes[] = {kiln::Attribute("sigmoid")};
             kernel.op("geglu").run(tensors, attributes, {});
           }}}};
  return gated_mlp_test::check_main(argc, argv, package);
}
