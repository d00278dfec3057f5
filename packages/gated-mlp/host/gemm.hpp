// SPDX-License-Identifier: Apache-2.0
//
// Gemm: one product of matrices as a launch of the kernel that suits it: of those for SM 9.0 where
// this variant and the shape have one, else of the portable ones. Before it: gpu_ops and
// gpu_backward. After it: plan.h and sm90_plan.h, which say what to launch. The only state is a
// thread's last plans.
#pragma once

#include <kiln/sdk/device.hpp>
#include <kiln/sdk/types.hpp>

#include "host/pins.h"
#include "host/plan.h"
#include "portable/arguments.h"
#include "sm90/sm90_plan.h"

namespace kiln::package {

// The products of the ops. A thread keeps the last plan of each.
enum class Product : int {
  kGated,       // forward: x with gate and up
  kDown,        // forward: h with down
  kKeeping,     // training_forward, backward: x with gate and up, which keeps both
  kGateUp,      // backward: x with gate and up, two products side by side
  kGradHidden,  // grad_y with down
  kGradX,       // gate's and up's gradients with gate and up
  kGradGate,    // gate's gradient with x
  kGradUp,      // up's gradient with x
  kGradDown,    // grad_y with h
};
inline constexpr int kProducts = 9;

struct GemmCall {
  Product product;
  const char* op;  // for errors, as the names below
  const char* a_name;
  const char* b0_name;
  const char* out_name;
  gated_mlp::GemmShape shape;          // but for `aligned`, which the launch finds out
  gated_mlp::GemmArguments arguments;  // pointers and gating; the launch adds extents and tiles
  const gated_mlp::Sm90Choice* pinned = nullptr;  // the kernel, where it is not the plan's
};

// Pins of the call's text: KILN_INVALID_ARGUMENT says what is wrong with it.
int32_t read_pins(const char* op, const char* text, const gated_mlp::Pinnable& pinnable,
                  gated_mlp::Pins* pins, kiln_error* error);

gated_mlp::Element element_of(sdk::DType dtype);
gated_mlp::GpuFacts facts_of(const sdk::OnDevice& gpu);

inline bool is_aligned(const void* address, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}
inline const void* data_or_null(const sdk::Tensor& tensor) {
  return tensor.present ? tensor.data : nullptr;
}

// The kernel for SM 9.0 that takes the call; null if none does or this variant lacks it. Counts
// until the next question about the same product.
const gated_mlp::Sm90Plan* find_sm90(const sdk::OnDevice& gpu, const GemmCall& call);

// How a kernel for SM 9.0 stands to its neighbours in the stream.
struct Sm90Order {
  // It may start before the kernel ahead ends. A plain one then reads b0 before it waits, which
  // must not be what that kernel writes.
  bool overlap;
  bool early;  // the next one may start before this one ends
};

int32_t launch_sm90(const sdk::OnDevice& gpu, const GemmCall& call, const gated_mlp::Sm90Plan& plan,
                    Sm90Order order, void* stream, kiln_error* error);

int32_t launch_portable(const sdk::OnDevice& gpu, const GemmCall& call, void* stream,
                        kiln_error* error);

// KILN_UNSUPPORTED: what the call pins does not run, and no other kernel takes its place.
int32_t fail_pinned(const sdk::OnDevice& gpu, const GemmCall& call, kiln_error* error);

// The one that takes the call, after the kernel ahead has ended; nothing if there are no outputs.
int32_t launch_gemm(const sdk::OnDevice& gpu, const GemmCall& call, void* stream,
                    kiln_error* error);

}  // namespace kiln::package
