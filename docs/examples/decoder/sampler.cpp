// SPDX-License-Identifier: Apache-2.0
#include "sampler.hpp"

#include <kiln/ops/sampling.hpp>

int Sampler::next(std::vector<float>& logits, std::int64_t position) {
  const auto one = [](auto& value, kiln::DType dtype) {
    return kiln::Tensor(&value, dtype, {1}, kiln::Device::cpu());
  };
  std::int32_t token = -1;
  const auto op = kernel_.op<kiln::ops::sampling::Sample>();
  const kiln::ops::sampling::Sample call{
      .logits = kiln::Tensor(logits.data(), kiln::DType::kFloat32,
                             {1, static_cast<std::int64_t>(logits.size())}, kiln::Device::cpu()),
      .temperature = one(limits_.temperature, kiln::DType::kFloat32),
      .top_k = one(limits_.top_k, kiln::DType::kInt32),
      .top_p = one(limits_.top_p, kiln::DType::kFloat32),
      .min_p = one(limits_.min_p, kiln::DType::kFloat32),
      .seeds = one(limits_.seed, kiln::DType::kInt64),
      .positions = one(position, kiln::DType::kInt64),
      .tokens = one(token, kiln::DType::kInt32)};
  op.run(call, workspace_.reserve(op.workspace_bytes(call)));
  return token;
}
