// SPDX-License-Identifier: Apache-2.0
//
// kiln/torch.hpp and the modules of the packages against LibTorch's own operators, on the CPU:
// values, every gradient, sharing, training; with KILN_TORCH_CUDA and a GPU also there. Wants
// KILN_REGISTRY.
#include <kiln/torch/geglu_mlp.hpp>
#include <kiln/torch/swiglu_mlp.hpp>

#ifdef KILN_TORCH_CUDA
#include <c10/cuda/CUDAGuard.h>
#endif

#include <ATen/FunctionalTensorWrapper.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/library.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace {

int failures = 0;

void check(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

void check_close(const torch::Tensor& found, const torch::Tensor& expected, const std::string& what,
                 double bound = 2e-6) {
  const auto wide = expected.to(torch::kFloat64);
  const double error = ((found.to(torch::kFloat64) - wide).norm() / wide.norm()).item<double>();
  check(found.sizes() == expected.sizes() && error < bound,
        what + ": relative L2 " + std::to_string(error));
}

/// By LibTorch's operators, in the dtype of the parameters.
template <class Module, class Activation>
torch::Tensor reference(const Module& mlp, const torch::Tensor& x, const Activation& activation) {
  namespace F = torch::nn::functional;
  const auto hidden =
      activation(F::linear(x, mlp->gate, mlp->gate_bias)) * F::linear(x, mlp->up, mlp->up_bias);
  return F::linear(hidden, mlp->down, mlp->down_bias);
}

template <class Module, class Activation>
void check_gradients(Module mlp, const Activation& activation, const std::string& name) {
  const auto x = torch::randn({3, 7, 48}, torch::requires_grad());
  const auto weight = torch::randn({3, 7, 48});
  const auto run = [&](const torch::Tensor& y) {
    std::vector<torch::Tensor> inputs = mlp->parameters();
    inputs.push_back(x);
    std::vector<torch::Tensor> results = torch::autograd::grad({(y * weight).sum()}, inputs);
    results.push_back(y.detach());
    return results;
  };
  const auto found = run(mlp->forward(x));
  const auto expected = run(reference(mlp, x, activation));
  for (std::size_t i = 0; i < found.size(); ++i) {
    check_close(found[i], expected[i], name + " result " + std::to_string(i));
  }
  const torch::NoGradGuard no_gradients;
  check_close(mlp->forward(x), expected.back(), name + " without gradients");
  check(mlp->forward(torch::empty({0, 48})).size(0) == 0, name + " of no rows");
}

template <class Module, class Activation>
void check_residual(Module mlp, const Activation& activation, const std::string& name) {
  const auto x = torch::randn({3, 7, 48}, torch::requires_grad());
  const auto residual = torch::randn({7, 3, 48}).transpose(0, 1).requires_grad_();
  const auto weight = torch::randn({3, 7, 48});
  const auto run = [&](const torch::Tensor& y, const torch::Tensor& of_x,
                       const torch::Tensor& of_residual) {
    std::vector<torch::Tensor> inputs = {of_x, of_residual};
    for (const torch::Tensor& parameter : mlp->parameters()) inputs.push_back(parameter);
    std::vector<torch::Tensor> results =
        torch::autograd::grad({(y * weight.to(y.scalar_type())).sum()}, inputs);
    results.push_back(y.detach());
    return results;
  };
  const auto found = run(mlp->forward(x, residual), x, residual);
  mlp->to(torch::kFloat64);
  const auto wide_x = x.detach().to(torch::kFloat64).requires_grad_();
  const auto wide_residual = residual.detach().to(torch::kFloat64).requires_grad_();
  const auto expected =
      run(reference(mlp, wide_x, activation) + wide_residual, wide_x, wide_residual);
  mlp->to(torch::kFloat32);
  for (std::size_t i = 0; i < found.size(); ++i) {
    check_close(found[i], expected[i], name + " and a residual, result " + std::to_string(i));
  }
  check(torch::equal(found[1], weight), name + ": the residual's gradient is grad_y");

  const auto alone = residual.detach().requires_grad_();
  for (torch::Tensor& parameter : mlp->parameters()) parameter.requires_grad_(false);
  (mlp->forward(x.detach(), alone) * weight).sum().backward();
  check(torch::equal(alone.grad(), weight), name + ": the residual's gradient alone");
  const auto leaf = torch::randn({3, 7, 48}, torch::requires_grad());
  mlp->forward(x.detach(), leaf).backward(weight);
  check(leaf.grad().data_ptr() != weight.data_ptr(), name + ": a leaf's gradient is its own");
  check(torch::equal(mlp->forward(x, {}), mlp->forward(x)), name + ": no residual");
  const torch::NoGradGuard no_gradients;
  check_close(mlp->forward(x, residual), expected.back(), name + " and a residual, no gradients");
  check(torch::equal(mlp->forward(x, torch::zeros_like(x)), mlp->forward(x)),
        name + ": a residual of zeros");
  check(mlp->forward(torch::empty({0, 48}), torch::empty({0, 48})).size(0) == 0,
        name + " and a residual of no rows");
}

/// What is left of y after -y is what its rounding took: 0 where y is rounded before the sum.
void check_residual_rounding() {
  const torch::NoGradGuard no_gradients;
  kiln::torch::GegluMlp mlp(kiln::torch::GegluMlpOptions(48, 80));
  mlp->to(torch::kBFloat16);
  const auto x = torch::randn({64, 48}).to(torch::kBFloat16);
  const auto y = mlp->forward(x);
  // Whatever the variant rounds before: a CPU's may round h to bfloat16, too.
  const auto left = mlp->forward(x, -y).to(torch::kFloat64);
  const auto half_step = y.to(torch::kFloat64).abs() / 256;
  check((left.abs() <= half_step).all().item<bool>(), "what rounding took is half a step");
  check(left.count_nonzero().item<int64_t>() > left.numel() / 2, "what rounding took is there");
}

void check_residual_errors() {
  kiln::torch::GegluMlp mlp(kiln::torch::GegluMlpOptions(16, 32));
  const auto x = torch::randn({2, 3, 16});
  const auto check_refused = [&](const torch::Tensor& residual, const std::string& words) {
    try {
      mlp->forward(x, residual);
      check(false, "not refused: " + words);
    } catch (const kiln::Error& error) {
      check(error.code() == kiln::ErrorCode::kInvalidCall &&
                std::string(error.what()).find("residual is " + words) != std::string::npos &&
                std::string(error.what()).find("like x, Float [2, 3, 16] on cpu") !=
                    std::string::npos,
            error.what());
    }
  };
  check_refused(torch::randn({3, 2, 16}), "Float [3, 2, 16] on cpu");
  check_refused(torch::randn({16}), "Float [16] on cpu");
  check_refused(torch::randn({6, 16}), "Float [6, 16] on cpu");
  check_refused(torch::randn({2, 3, 16}).to(torch::kHalf), "Half [2, 3, 16] on cpu");
  check_refused(torch::empty({2, 3, 16}, torch::kMeta), "Float [2, 3, 16] on meta");
}

void check_sequential() {
  kiln::torch::GegluMlp first(kiln::torch::GegluMlpOptions(16, 32));
  kiln::torch::SwigluMlp second(kiln::torch::SwigluMlpOptions(16, 32));
  torch::nn::Sequential model(first, second);
  const auto x = torch::randn({5, 16});
  const auto residual = torch::randn({5, 16});
  check(torch::equal(model->forward(x), second->forward(first->forward(x))), "in a Sequential");
  check(torch::equal(model->forward(x, residual), second->forward(first->forward(x, residual))),
        "in a Sequential, with a residual");
}

void check_some_gradients() {
  kiln::torch::GegluMlp mlp(kiln::torch::GegluMlpOptions(16, 32));
  mlp->gate.requires_grad_(false);
  mlp->down.requires_grad_(false);
  mlp->forward(torch::randn({4, 16})).sum().backward();
  check(!mlp->gate.grad().defined() && !mlp->down.grad().defined(), "what is not wanted");
  check(mlp->up.grad().norm().item<double>() > 0, "up alone");
}

void check_second_derivative() {
  kiln::torch::GegluMlp mlp(kiln::torch::GegluMlpOptions(16, 32));
  const auto x = torch::randn({4, 16}, torch::requires_grad());
  try {
    torch::autograd::grad({mlp->forward(x).sum()}, {x}, {}, true, true);
    check(false, "a second derivative was not refused");
  } catch (const std::exception& error) {
    check(std::string(error.what()).find("second derivative") != std::string::npos, error.what());
  }
}

void check_shared_linears() {
  torch::nn::Linear gate(16, 32);
  torch::nn::Linear up(16, 32);
  torch::nn::Linear down(32, 16);
  kiln::torch::SwigluMlp mlp(gate, up, down);
  check(mlp->gate.data_ptr() == gate->weight.data_ptr(), "the weights are shared");
  const auto x = torch::randn({5, 16});
  check_close(mlp->forward(x), down(torch::silu(gate(x)) * up(x)), "shared linears");
  bool refused = false;
  try {
    mlp->to(torch::kFloat64);
    mlp->forward(x.to(torch::kFloat64));
  } catch (const kiln::Error& error) {
    refused = error.code() == kiln::ErrorCode::kInvalidCall;
  }
  check(refused, "float64 is refused");
}

kiln::torch::GegluMlp small_mlp() {
  torch::manual_seed(6);
  return kiln::torch::GegluMlp(kiln::torch::GegluMlpOptions(16, 32));
}

TORCH_LIBRARY(kiln_test, library) {
  library.def("mlp(Tensor x) -> Tensor", [](const torch::Tensor& x) {
    const torch::NoGradGuard no_gradients;
    return small_mlp()->forward(x);
  });
}

/// What LibTorch keeps of a function of x, as its results for another x.
torch::Tensor traced(const std::function<torch::Tensor(torch::Tensor)>& function,
                     const torch::Tensor& x, const torch::Tensor& other) {
  const auto kept = torch::jit::tracer::trace(
      {x}, [&](torch::jit::Stack in) -> torch::jit::Stack { return {function(in[0].toTensor())}; },
      [](const torch::Tensor&) { return std::string(); });
  torch::jit::Stack stack = {other};
  torch::jit::GraphExecutor(kept.first->graph, "traced").run(stack);
  return stack[0].toTensor();
}

/// What an address does not carry, and who follows LibTorch's operators.
void check_between() {
  const torch::NoGradGuard no_gradients;
  kiln::torch::GegluMlp mlp = small_mlp();
  const auto x = torch::randn({5, 16});
  const auto expect_refused = [&](const std::string& words, const auto& call) {
    try {
      call();
      check(false, "not refused: " + words);
    } catch (const kiln::Error& error) {
      check(error.code() == kiln::ErrorCode::kInvalidCall &&
                std::string(error.what()).find(words) != std::string::npos,
            words + " was expected: " + error.what());
    } catch (const std::exception& error) {
      check(false, words + " was expected: " + error.what());
    }
  };
  const auto of = [&](const torch::Tensor& given) { return [&, given] { mlp->forward(given); }; };
  expect_refused("negative bit", of(torch::_neg_view(x)));
  expect_refused("negative bit", [&] { mlp->forward(x, torch::_neg_view(x)); });
  expect_refused("without memory", of(torch::_efficientzerotensor({5, 16})));
  torch::Tensor freed = torch::randn({5, 16});
  freed.storage().unsafeGetStorageImpl()->set_data_ptr_noswap({nullptr, torch::kCPU});
  expect_refused("without memory", of(freed));
  expect_refused("not a plain one", of(at::functionalization::impl::to_functional_tensor(x)));
  expect_refused("not a plain one", [&] { kiln::torch::view(x.to_sparse()); });
  expect_refused("not a plain one", [&] {
    kiln::torch::view(at::_nested_tensor_from_tensor_list({x, x}));
  });
  expect_refused("on meta", [&] { kiln::torch::view(x.to(torch::kMeta)); });
  const auto weight = mlp->gate;
  mlp->gate = torch::_neg_view(weight);
  expect_refused("negative bit", of(x));
  mlp->gate = weight;

  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  expect_refused("forward-mode gradients", of(torch::_make_dual(x, torch::ones_like(x), level)));
  {
    const torch::AutoGradMode gradients(true);
    expect_refused("forward-mode gradients", of(torch::_make_dual(x, torch::ones_like(x), level)));
  }
  torch::autograd::ForwardADLevel::release_idx(level);

  const auto other = torch::randn({5, 16});
  expect_refused("torch.jit traces it", [&] {
    traced([&](const torch::Tensor& given) { return mlp->forward(given); }, x, other);
  });
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("kiln_test::mlp", "")
                      .typed<torch::Tensor(const torch::Tensor&)>();
  check(torch::equal(traced([&](const torch::Tensor& given) { return op.call(given); }, x, other),
                     mlp->forward(other)),
        "a trace of an operator that calls Kiln");
}

void check_training() {
  torch::manual_seed(2);
  kiln::torch::GegluMlp mlp(kiln::torch::GegluMlpOptions(16, 64));
  const auto x = torch::randn({64, 16});
  const auto target = torch::sin(2 * x);
  torch::optim::Adam optimizer(mlp->parameters(), 1e-2);
  double first = 0;
  double last = 0;
  for (int i = 0; i < 150; ++i) {
    const auto loss = torch::mse_loss(mlp->forward(x), target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    (i == 0 ? first : last) = loss.item<double>();
  }
  check(last < first / 5, "training: " + std::to_string(first) + " to " + std::to_string(last));
}

#ifdef KILN_TORCH_CUDA
/// In bfloat16, on a stream that is not the default one, against float64 on the CPU.
void check_on_gpu() {
  if (!torch::cuda::is_available()) return;
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  kiln::torch::GegluMlp mlp(kiln::torch::GegluMlpOptions(512, 1024).bias(true));
  mlp->to(torch::kCUDA, torch::kBFloat16);
  const auto run = [&](torch::Device device, torch::ScalarType dtype, bool by_kiln) {
    torch::manual_seed(3);
    const auto leaf = [&] {
      return torch::randn({200, 512}).to(torch::kBFloat16).to(device, dtype).requires_grad_();
    };
    const auto x = leaf();
    const auto residual = leaf();
    const auto weight = leaf().detach();
    const auto y = by_kiln ? mlp->forward(x, residual)
                           : residual + reference(mlp, x, [](const torch::Tensor& z) {
                               return torch::gelu(z, "tanh");
                             });
    std::vector<torch::Tensor> inputs = mlp->parameters();
    inputs.insert(inputs.end(), {x, residual});
    std::vector<torch::Tensor> results = torch::autograd::grad({(y * weight).sum()}, inputs);
    results.push_back(y.detach());
    return results;
  };
  const auto found = run(torch::kCUDA, torch::kBFloat16, true);
  mlp->to(torch::kCPU, torch::kFloat64);
  const auto expected = run(torch::kCPU, torch::kFloat64, false);
  for (std::size_t i = 0; i < found.size(); ++i) {
    check_close(found[i].cpu(), expected[i], "on the GPU, result " + std::to_string(i), 8e-3);
  }
  std::printf("libtorch: checked on the GPU\n");
}
#endif

}  // namespace

int main() {
  if (std::getenv("KILN_REGISTRY") == nullptr) return 77;
  torch::set_num_threads(1);
  torch::manual_seed(1);
  using kiln::torch::GegluMlp;
  using kiln::torch::SwigluMlp;
  for (const bool bias : {false, true}) {
    const auto geglu = kiln::torch::GegluMlpOptions(48, 80).bias(bias);
    const auto swiglu = kiln::torch::SwigluMlpOptions(48, 80).bias(bias);
    check_gradients(
        GegluMlp(geglu), [](const torch::Tensor& z) { return torch::gelu(z, "tanh"); }, "geglu");
    using Approximate = kiln::layers::GegluMlp::Approximate;
    check_gradients(
        GegluMlp(
            kiln::torch::GegluMlpOptions(geglu).attributes({.approximate = Approximate::kNone})),
        [](const torch::Tensor& z) { return torch::gelu(z); }, "geglu, erf");
    check_gradients(
        SwigluMlp(swiglu), [](const torch::Tensor& z) { return torch::silu(z); }, "swiglu");
    check_residual(
        GegluMlp(geglu), [](const torch::Tensor& z) { return torch::gelu(z, "tanh"); }, "geglu");
    check_residual(
        SwigluMlp(swiglu), [](const torch::Tensor& z) { return torch::silu(z); }, "swiglu");
  }
  check_residual_rounding();
  check_residual_errors();
  check_sequential();
  check_some_gradients();
  check_second_derivative();
  check_shared_linears();
  check_between();
  check_training();
#ifdef KILN_TORCH_CUDA
  check_on_gpu();
#endif
  std::printf("libtorch: %d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}
