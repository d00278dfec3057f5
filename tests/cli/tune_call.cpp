// SPDX-License-Identifier: Apache-2.0
//
// A program that calls what tune_test.py tunes: sample@1 forward, as its arguments say.
//
//   tune_call ROWS COLUMNS [kernel=WORD] [exact=WORD] [scale=NUMBER] [bias] [bias=float64]
//   [op=WORD] [unaligned] [times=N]
//             [null=tensors|shape|attributes]: what a call in C may have left out, refused in text
//
// Prints which kernel ran ("quick" or "own", by its last bit), the workspace that was asked for,
// the nanoseconds of a call, and the kernel's explanation.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kiln/kernel.hpp"

int main(int argc, char** argv) {
  try {
    const std::int64_t rows = std::atoll(argv[1]);
    const std::int64_t columns = std::atoll(argv[2]);
    std::string kernel_word;
    std::string exact;
    double scale = 2;
    int times = 1;
    bool has_bias = false;
    std::string null;
    std::string op_word = "forward";
    kiln::DType bias_type = kiln::DType::kFloat32;
    std::size_t from = 0;
    for (int i = 3; i < argc; ++i) {
      const std::string_view word = argv[i];
      const std::string value(word.substr(word.find('=') + 1));
      if (word.starts_with("kernel=")) kernel_word = value;
      if (word.starts_with("exact=")) exact = value;
      if (word.starts_with("scale=")) scale = std::atof(value.c_str());
      if (word.starts_with("times=")) times = std::atoi(value.c_str());
      if (word.starts_with("null=")) null = value;
      if (word.starts_with("op=")) op_word = value;
      if (word.starts_with("bias")) has_bias = true;
      if (word == "bias=float64") bias_type = kiln::DType::kFloat64;
      if (word == "unaligned") from = 1;
    }
    const kiln::Kernel kernel =
        kiln::get_kernel("sample", {.version = 1, .device = kiln::Device::cpu()});
    const auto count = static_cast<std::size_t>(rows * columns);
    kiln::OwnedWorkspace memory(kiln::Device::cpu());
    float* const x =
        static_cast<float*>(memory.reserve((count + from) * sizeof(float)).data) + from;
    std::vector<float> y(count);
    std::vector<double> bias(static_cast<std::size_t>(columns));
    for (std::size_t i = 0; i < count; ++i) x[i] = 1;
    const kiln::TensorMaker f32{kiln::DType::kFloat32, kiln::Device::cpu()};
    const kiln::TensorMaker of_bias{bias_type, kiln::Device::cpu()};
    std::vector<kiln::Tensor> tensors = {
        f32(x, {rows, columns}), has_bias ? of_bias(bias.data(), {columns}) : kiln::Tensor(),
        f32(y.data(), {rows, columns})};
    if (op_word == "biased") std::swap(tensors[0], tensors[1]);
    if (op_word == "fixed") tensors.erase(tensors.begin() + 1);
    const kiln::Attribute attributes[] = {
        scale, kernel_word.empty() ? kiln::Attribute() : kiln::Attribute(kernel_word.c_str()),
        exact.empty() ? kiln::Attribute() : kiln::Attribute(exact.c_str())};
    const kiln::Op op = kernel.op(op_word);
    if (!null.empty()) {
      DLTensor dl[] = {tensors[0].dl(), tensors[0].dl(), tensors[2].dl()};
      if (null == "shape") dl[0].shape = nullptr;
      const DLTensor* const each[] = {&dl[0], nullptr, &dl[2]};
      kiln_call call{};
      call.struct_size = sizeof call;
      call.tensor_count = 3;
      call.tensors = null == "tensors" ? nullptr : each;
      call.attribute_count = null == "attributes" ? 2 : 0;
      kiln_error error{};
      std::printf("status %d: ", static_cast<int>(op.c().run(&call, &error)));
      std::puts(error.text);
      return 0;
    }
    const std::size_t bytes = op.workspace_bytes(tensors, attributes);
    kiln::OwnedWorkspace workspace(kiln::Device::cpu());
    const kiln::Workspace given = workspace.reserve(bytes);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) op.run(tensors, attributes, {given.data, bytes});
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    const char* const ran = y[0] == static_cast<float>(scale) ? "own" : "quick";
    std::printf("ran %s\nbytes %zu\nnanoseconds %.0f\n%s\n", ran, bytes, took.count() / times,
                kernel.resolution().explain().c_str());
    return 0;
  } catch (const kiln::Error& error) {
    std::printf("%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
