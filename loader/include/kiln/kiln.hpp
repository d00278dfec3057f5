// SPDX-License-Identifier: Apache-2.0
//
// Kiln: prebuilt GPU kernels for C++ programs. This header is the whole public API but the layers,
// which come with their packages (kiln/layers/<layer>.hpp).
//
//   kiln::Kernel kernel = kiln::get_kernel("geglu-mlp", {.version = 1});
//   auto mlp = kernel.layer<kiln::layers::GegluMlp>({.gate = w_gate, .up = w_up, .down = w_down});
//   mlp.forward(x, y, workspace, stream);
#pragma once

#include "kiln/compiler.hpp"

#include "kiln/device.hpp"
#include "kiln/error.hpp"
#include "kiln/event.hpp"
#include "kiln/float16.hpp"
#include "kiln/host.hpp"
#include "kiln/kernel.hpp"
#include "kiln/op.hpp"
#include "kiln/request.hpp"
#include "kiln/resolution.hpp"
#include "kiln/stream.hpp"
#include "kiln/tensor.hpp"
