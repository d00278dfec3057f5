// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <iostream>
#include <utility>

#include "check.hpp"
#include "host/cublaslt_plan.h"

namespace gated_mlp_test {
namespace {

constexpr unsigned char kGuardByte = 0xa5;
constexpr unsigned char kPoisonByte = 0xff;

/// A variant that needs cuBLASLt asks for its workspace: no name tells which they are.
bool asks_for_cublaslt(const Variant& variant) {
  if (!variant.memory.is_gpu()) return false;
  const kiln::Device device = variant.kernel.device();
  const kiln::Tensor weight(nullptr, kiln::DType::kBFloat16, {8, 8}, device);
  const kiln::Tensor x(nullptr, kiln::DType::kBFloat16, {gated_mlp::kCublasltRows, 8}, device);
  const MlpLayer layer =
      variant.package.mlp(variant.kernel, {.gate = weight, .up = weight, .down = weight},
                          variant.package.gates.front());
  return layer.workspace_bytes(x) ==
         gated_mlp::plan_cublaslt({true, gated_mlp::kCublasltRows, 8, 8}).workspace_bytes;
}

}  // namespace

KernelFamily family_of(const Variant& variant) {
  const bool sm90 = variant.kernel.variant().find("sm_90a") != std::string::npos;
  if (sm90) return KernelFamily::kSm90;
  return asks_for_cublaslt(variant) ? KernelFamily::kCublaslt : KernelFamily::kPortable;
}

bool is_by_cublaslt(const Variant& variant, const Shape& shape, bool aligned) {
  return family_of(variant) == KernelFamily::kCublaslt &&
         gated_mlp::plan_cublaslt({true, shape.m, shape.d, shape.h, aligned}).refused == nullptr;
}

void report(Variant& variant, bool passed, const std::string& text) {
  ++variant.tally.cases;
  if (passed) return;
  // The first failures tell what is wrong; thousands of them would hide it.
  if (++variant.tally.failed <= 40) {
    std::cout << "FAILED " << variant.kernel.variant() << ": " << text << '\n';
  }
}

std::string name_of(kiln::DType dtype) {
  switch (dtype) {
    case kiln::DType::kFloat32:
      return "float32";
    case kiln::DType::kFloat16:
      return "float16";
    case kiln::DType::kBFloat16:
      return "bfloat16";
  }
  return "?";
}

// Half precision: one rounding of h and one of y (2.37e-3 and 2.94e-4 in a simulation of exactly
// that). float32: the order of summation.
double bound_of(kiln::DType dtype) {
  switch (dtype) {
    case kiln::DType::kFloat32:
      return 1e-6;
    case kiln::DType::kFloat16:
      return 3.2e-4;
    case kiln::DType::kBFloat16:
      return 2.5e-3;
  }
  return 0;
}

// Four roundings, of both products, h and y: 3.46e-3 and 4.54e-4 in a simulation of exactly that.
double bound_of_cublaslt(kiln::DType dtype) {
  return dtype == kiln::DType::kFloat16 ? 4.8e-4 : 3.7e-3;
}

Guarded::Guarded(Memory& memory, std::size_t bytes, std::size_t shift)
    : memory_(memory), bytes_(bytes), shift_(shift) {
  allocate();
  poison();
}

Guarded::Guarded(Memory& memory, Bytes content, std::size_t shift)
    : memory_(memory), bytes_(content.size()), content_(std::move(content)), shift_(shift) {
  allocate();
  restore();
}

void Guarded::allocate() {
  base_ = static_cast<unsigned char*>(memory_.allocate(kGuard + shift_ + bytes_ + kGuard));
  memory_.fill(base_, kGuardByte, kGuard + shift_);
  memory_.fill(base_ + kGuard + shift_ + bytes_, kGuardByte, kGuard);
}

Guarded::~Guarded() {
  memory_.release(base_);
}

void Guarded::poison() {
  memory_.fill(data(), kPoisonByte, bytes_);
}

void Guarded::restore() {
  memory_.upload(data(), content_.data(), bytes_);
}

Bytes Guarded::read() const {
  Bytes bytes(bytes_);
  memory_.download(bytes.data(), data(), bytes.size());
  return bytes;
}

bool Guarded::guards_intact() const {
  Bytes before(kGuard + shift_);
  Bytes after(kGuard);
  memory_.download(before.data(), base_, before.size());
  memory_.download(after.data(), base_ + kGuard + shift_ + bytes_, after.size());
  const auto is_guard = [](unsigned char byte) { return byte == kGuardByte; };
  return std::all_of(before.begin(), before.end(), is_guard) &&
         std::all_of(after.begin(), after.end(), is_guard);
}

MlpData random_mlp(Shape shape, kiln::DType dtype, bool biased, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto spread = [](std::int64_t k) { return 1.0 / std::sqrt(static_cast<double>(k) + 1); };
  MlpData data{.shape = shape, .dtype = dtype, .biased = biased};
  data.x = random_normal(dtype, shape.m * shape.d, 1.0, random);
  data.gate = random_normal(dtype, shape.h * shape.d, spread(shape.d), random);
  data.up = random_normal(dtype, shape.h * shape.d, spread(shape.d), random);
  data.down = random_normal(dtype, shape.d * shape.h, spread(shape.h), random);
  if (biased) {
    data.gate_bias = random_normal(dtype, shape.h, 0.5, random);
    data.up_bias = random_normal(dtype, shape.h, 0.5, random);
    data.down_bias = random_normal(dtype, shape.d, 0.5, random);
  }
  return data;
}

void add_residual(MlpData& data, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  data.has_residual = true;
  data.residual = random_normal(data.dtype, data.shape.m * data.shape.d, 0.5, random);
}

MlpBuffers::MlpBuffers(Variant& variant, const MlpData& data, Gate gate, Shift shift)
    : data_(data),
      device_(variant.kernel.device()),
      x_(variant.memory, data.x, shift.all),
      gate_(variant.memory, data.gate, shift.all),
      up_(variant.memory, data.up, shift.all),
      down_(variant.memory, data.down, shift.all),
      gate_bias_(variant.memory, data.gate_bias, shift.all),
      up_bias_(variant.memory, data.up_bias, shift.all),
      down_bias_(variant.memory, data.down_bias, shift.all),
      residual_(variant.memory, data.residual, shift.residual),
      y_(variant.memory, data.x.size(), shift.all),
      layer_(variant.package.mlp(variant.kernel, weights(), gate)),
      workspace_(variant.memory, layer_.workspace_bytes(x_tensor())) {}

kiln::Tensor MlpBuffers::tensor(const Guarded& buffer,
                                std::initializer_list<std::int64_t> shape) const {
  return kiln::Tensor(buffer.data(), data_.dtype, shape, device_);
}

kiln::Tensor MlpBuffers::x_tensor() const {
  return tensor(x_, {data_.shape.m, data_.shape.d});
}

kiln::Tensor MlpBuffers::y_tensor() const {
  return tensor(y_, {data_.shape.m, data_.shape.d});
}

kiln::Tensor MlpBuffers::residual_tensor() const {
  if (!data_.has_residual) return {};
  return tensor(residual_, {data_.shape.m, data_.shape.d});
}

MlpWeights MlpBuffers::weights() const {
  const Shape shape = data_.shape;
  const auto [x, gate, up, down, residual] = inputs();
  MlpWeights weights = {.gate = gate,
                        .up = up,
                        .down = down,
                        .saturates = data_.saturates,
                        .invariant = data_.invariant,
                        .kernels = data_.kernels};
  if (data_.biased) {
    weights.gate_bias = tensor(gate_bias_, {shape.h});
    weights.up_bias = tensor(up_bias_, {shape.h});
    weights.down_bias = tensor(down_bias_, {shape.d});
  }
  return weights;
}

void MlpBuffers::forward(const MlpInput& input, const kiln::Tensor& y, void* stream) const {
  layer_.forward(input, y, {workspace_.data(), workspace_.bytes()}, stream);
}

void MlpBuffers::run(void* stream) const {
  forward({x_tensor(), residual_tensor()}, y_tensor(), stream);
}

void MlpBuffers::run_without_residual() const {
  forward({x_tensor()}, y_tensor(), nullptr);
}

void MlpBuffers::run_in_place() const {
  forward({x_tensor(), residual_tensor()}, residual_tensor(), nullptr);
}

void MlpBuffers::run_chain(int count, void* stream, const std::function<void()>& after_each) const {
  kiln::Tensor from = x_tensor();
  kiln::Tensor to = y_tensor();
  for (int i = 0; i < count; ++i) {
    forward({from, residual_tensor()}, to, stream);
    after_each();
    std::swap(from, to);
  }
}

void MlpBuffers::run_sum(int count, void* stream, const std::function<void()>& after_each) const {
  kiln::Tensor from = residual_tensor();
  kiln::Tensor to = y_tensor();
  for (int i = 0; i < count; ++i) {
    forward({x_tensor(), from}, to, stream);
    after_each();
    std::swap(from, to);
  }
}

std::array<kiln::Tensor, 5> MlpBuffers::inputs() const {
  const auto [m, d, h] = data_.shape;
  return {x_tensor(), tensor(gate_, {h, d}), tensor(up_, {h, d}), tensor(down_, {d, h}),
          residual_tensor()};
}

void MlpBuffers::derive_inputs(const GatedLayer& gated, const MlpBuffers& source, int last,
                               void* stream) const {
  const std::array<kiln::Tensor, 5> from = source.inputs();
  const std::array<kiln::Tensor, 5> to = inputs();
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::size_t input = (i + static_cast<std::size_t>(last) + 1) % to.size();
    gated.forward(from[input], from[input], to[input], stream);
  }
}

void MlpBuffers::poison() {
  y_.poison();
  workspace_.poison();
}

std::string MlpBuffers::damage() const {
  std::string damage;
  const Guarded* const inputs[] = {&x_,         &gate_,    &up_,        &down_,
                                   &gate_bias_, &up_bias_, &down_bias_, &residual_};
  for (const Guarded* input : inputs) {
    if (!input->unchanged()) damage = "; an input was written";
    if (!input->guards_intact()) damage = "; the guard band of an input was written";
  }
  if (!y_.guards_intact()) damage += "; wrote beside y";
  if (!workspace_.guards_intact()) damage += "; wrote beside the workspace";
  return damage;
}

}  // namespace gated_mlp_test
