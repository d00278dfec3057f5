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

void expect_close(const char* what, const torch::Tensor& found, const torch::Tensor& expected,
                  double bound = 1e-5) {
  const double error = ((found - expected).norm() / expected.norm()).item<double>();
  if (error < bound) return;
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
  const auto found = torch::autograd::grad({loss(y, h)}, inputs, {}, true);
  const auto by_torch = torch::autograd::grad({loss(expected, sum)}, inputs);
  for (std::size_t i = 0; i < found.size(); ++i) {
    expect_close(("gradient " + std::to_string(i)).c_str(), found[i], by_torch[i]);
  }
  if (!with_residual) return;
  loss(y, h).backward({}, true);
  loss(y, h).backward();  // into the same memory, if it were one
  expect_close("gradient of x, twice", inputs[0].grad(), 2 * by_torch[0]);
}

/// A weight in another dtype than x, as mixed precision has it: computed in x's, its gradient in
/// its own.
void check_another_dtype() {
  kiln::torch::RmsNorm norm(kiln::torch::RmsNormOptions(40));
  const torch::Tensor x = torch::randn({3, 40}).to(torch::kBFloat16);
  const torch::Tensor y = norm->forward(x);
  const torch::Tensor wide = x.to(torch::kFloat32);
  expect_close("y in bfloat16", y, wide * torch::rsqrt(wide.square().mean(-1, true) + 1e-6), 1e-2);
  y.sum().backward();
  if (y.scalar_type() == torch::kBFloat16 && norm->weight.grad().scalar_type() == torch::kFloat32) {
    return;
  }
  std::puts("FAILED: y or the weight's gradient has another dtype than x or the weight");
  ++failed;
}

}  // namespace

int main() {
  check(false);
  check(true);
  check_another_dtype();
  if (failed == 0) std::puts("kiln::torch::RmsNorm agrees with LibTorch");
  return failed == 0 ? 0 : 1;
}
