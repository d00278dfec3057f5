// SPDX-License-Identifier: Apache-2.0
//
// kiln::torch::RmsNorm against LibTorch's own operators on the CPU: y, h and every gradient.
#include <cstdio>
#include <kiln/torch/rms_norm.hpp>
#include <string>
#include <tuple>
#include <vector>

namespace {

int failed = 0;

void expect_close(const char* what, const torch::Tensor& found, const torch::Tensor& expected) {
  const double error = ((found - expected).norm() / expected.norm()).item<double>();
  if (error < 1e-5) return;
  std::printf("FAILED: %s differs by %.1e\n", what, error);
  ++failed;
}

void check(bool with_residual) {
  kiln::torch::RmsNorm norm(
      kiln::torch::RmsNormOptions(40).attributes({.eps = 1e-5, .offset = 1.0}));
  {
    const torch::NoGradGuard no_gradients;
    norm->weight.normal_();
  }
  std::vector<torch::Tensor> inputs = {torch::randn({2, 3, 40}, torch::requires_grad())};
  if (with_residual) inputs.push_back(torch::randn({2, 3, 40}, torch::requires_grad()));
  torch::Tensor y;
  torch::Tensor h = inputs[0];
  if (with_residual) {
    std::tie(y, h) = norm->forward(inputs[0], inputs[1]);
  } else {
    y = norm->forward(inputs[0]);
  }
  const torch::Tensor sum = with_residual ? inputs[0] + inputs[1] : inputs[0];
  const torch::Tensor expected =
      sum * torch::rsqrt(sum.square().mean(-1, true) + 1e-5) * (1 + norm->weight);
  expect_close("y", y, expected);
  expect_close("h", h, sum);
  inputs.push_back(norm->weight);
  const torch::Tensor of_y = torch::randn_like(y);
  const torch::Tensor of_h = torch::randn_like(y);
  const auto loss = [&](const torch::Tensor& a, const torch::Tensor& b) {
    return (a * of_y).sum() + (with_residual ? (b * of_h).sum() : torch::zeros({}));
  };
  const auto found = torch::autograd::grad({loss(y, h)}, inputs);
  const auto by_torch = torch::autograd::grad({loss(expected, sum)}, inputs);
  for (std::size_t i = 0; i < found.size(); ++i) {
    expect_close(("gradient " + std::to_string(i)).c_str(), found[i], by_torch[i]);
  }
}

}  // namespace

int main() {
  check(false);
  check(true);
  if (failed == 0) std::puts("kiln::torch::RmsNorm agrees with LibTorch");
  return failed == 0 ? 0 : 1;
}
