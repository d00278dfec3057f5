// SPDX-License-Identifier: Apache-2.0
//
// The sample package's op "add", called and compared.
#pragma once

#include <doctest/doctest.h>

#include <array>

#include "kiln/kernel.hpp"

namespace kiln::test {

/// y = x + 2, with a workspace of the size that the op asks for.
inline void check_add(const Kernel& kernel) {
  std::array<float, 6> x{1, 2, 3, 4, 5, 6};
  std::array<float, 6> y{};
  const Tensor tensors[] = {Tensor(x.data(), DType::kFloat32, {2, 3}, Device::cpu()),
                            Tensor(y.data(), DType::kFloat32, {2, 3}, Device::cpu())};
  const Attribute attributes[] = {Attribute(2.0)};
  const Op add = kernel.op("add");
  OwnedWorkspace workspace(Device::cpu());
  add.run(tensors, attributes, workspace.reserve(add.workspace_bytes(tensors, attributes)),
          nullptr);
  CHECK(y == std::array<float, 6>{3, 4, 5, 6, 7, 8});
}

}  // namespace kiln::test
