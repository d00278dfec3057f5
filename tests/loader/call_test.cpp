// SPDX-License-Identifier: Apache-2.0
//
// Call: arguments over the C ABI, and a package's answers as errors.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

const Kernel& kernel() {
  static const Kernel instance = [] {
    Scratch scratch;
    Published published(scratch / "registry");
    published.publish({cpu_draft(sample_library())});
    return get_kernel("sample", {.version = 1,
                                 .device = Device::cpu(),
                                 .registry = published.root().string(),
                                 .cache = scratch / "cache"});
  }();
  return instance;
}

struct Square {
  std::array<float, 4> x{1, 2, 3, 4};
  std::array<float, 4> y{};
  std::array<Tensor, 2> tensors{Tensor(x.data(), DType::kFloat32, {2, 2}, Device::cpu()),
                                Tensor(y.data(), DType::kFloat32, {2, 2}, Device::cpu())};
};

TEST_CASE("call: attributes arrive as what they are, and none is the default") {
  OwnedWorkspace workspace(Device::cpu());
  struct Case {
    Attribute attribute;
    float first;
  };
  for (const Case& each : {Case{Attribute(), 2.0f}, Case{Attribute(0.5), 1.5f},
                           Case{Attribute(std::int64_t{7}), 8.0f}}) {
    Square square;
    kernel().op("add").run(square.tensors, std::array{each.attribute}, workspace.reserve(64),
                           nullptr);
    CHECK(square.y[0] == each.first);
  }
}

TEST_CASE("call: a column slice is read and written where it is") {
  OwnedWorkspace workspace(Device::cpu());
  std::array<float, 8> packed{1, 2, 3, 4, 5, 6, 7, 8};
  std::array<float, 8> out{};
  const Tensor x = Tensor(packed.data(), DType::kFloat32, {2, 4}, Device::cpu()).columns(2, 2);
  const Tensor y = Tensor(out.data(), DType::kFloat32, {2, 4}, Device::cpu()).columns(0, 2);
  kernel().op("add").run(std::array{x, y}, {}, workspace.reserve(64), nullptr);
  CHECK(out == std::array<float, 8>{4, 5, 0, 0, 8, 9, 0, 0});
}

TEST_CASE("call: what a package refuses becomes a typed error with its text") {
  const Op add = kernel().op("add");
  Square square;
  const Error count = error_of([&] { add.workspace_bytes(std::span(square.tensors).first(1)); });
  CHECK(count.code() == ErrorCode::kInvalidCall);
  CHECK_CONTAINS(count.what(), "expected 2 tensors");
  const Error workspace = error_of([&] { add.run(square.tensors, {}, {}, nullptr); });
  CHECK(workspace.code() == ErrorCode::kInvalidCall);
  CHECK_CONTAINS(workspace.what(), "workspace too small");
  OwnedWorkspace enough(Device::cpu());
  const Error device = error_of([&] {
    add.run(square.tensors, std::array{Attribute("cuLaunchKernel: 700")}, enough.reserve(64),
            nullptr);
  });
  CHECK(device.code() == ErrorCode::kDevice);
  CHECK_CONTAINS(device.what(), "cuLaunchKernel: 700");
}

TEST_CASE("call: tensors left out are null, and there may be more of them than fit the stack") {
  const Op probe = kernel().op("probe");
  float value = 0;
  const Tensor there(&value, DType::kFloat32, {1}, Device::cpu());
  const Error few = error_of([&] {
    probe.run(std::array{there, Tensor(), there}, {}, {}, nullptr);
  });
  CHECK(few.code() == ErrorCode::kInvalidCall);
  CHECK(std::string(few.what()) == "101");
  const std::vector<Tensor> many(40, there);
  const std::vector<Attribute> attributes(20);
  const Error error = error_of([&] { probe.run(many, attributes, {}, nullptr); });
  CHECK(std::string(error.what()) == std::string(40, '1'));
}

/// A typed layer of the sample package, as compiled for one package and one form of "add".
template <const auto& kPackageName, const auto& kAdd>
struct AddLayer {
  static constexpr std::string_view kPackage = kPackageName;
  static constexpr LayerOp kOps[] = {{"add", kAdd}};
  struct Weights {};
  AddLayer(const Kernel&, Weights) {}
};
template <const auto& kPackageName, const auto& kAdd>
Error refusal() {
  return error_of([] { kernel().layer<AddLayer<kPackageName, kAdd>>({}); });
}

constexpr char kSample[] = "sample";
constexpr char kOther[] = "other";
constexpr char kWhole[] = "x, y; amount, times";
constexpr char kOneAttribute[] = "x, y; amount";
constexpr char kNoAttribute[] = "x, y;";
constexpr char kReordered[] = "y, x; amount, times";
constexpr char kOptional[] = "x, y?; amount, times";
constexpr char kOneTensor[] = "x; amount";
constexpr char kHalfAWord[] = "x, y; amount, time";
constexpr char kMore[] = "x, y; amount, times, more";

TEST_CASE("layer: made where its ops take what it gives, or more attributes") {
  kernel().layer<AddLayer<kSample, kWhole>>({});
  kernel().layer<AddLayer<kSample, kOneAttribute>>({});
  kernel().layer<AddLayer<kSample, kNoAttribute>>({});
}

TEST_CASE("layer: of another package, or for other arguments, is refused") {
  const Error other = refusal<kOther, kWhole>();
  CHECK(other.code() == ErrorCode::kUsage);
  CHECK_CONTAINS(other.what(), "make a layer of sample@1: the layer is of package other");
  const Error errors[] = {refusal<kSample, kReordered>(), refusal<kSample, kOptional>(),
                          refusal<kSample, kOneTensor>(), refusal<kSample, kHalfAWord>(),
                          refusal<kSample, kMore>()};
  for (const Error& error : errors) {
    CHECK(error.code() == ErrorCode::kUsage);
    CHECK_CONTAINS(error.what(),
                   "op add takes (x, y; amount, times), the layer was compiled for (");
    CHECK_CONTAINS(error.what(), "Take the layer's header from this version of the package");
  }
}

TEST_CASE("workspace: aligned, kept while it is large enough, and moved with its owner") {
  OwnedWorkspace workspace(Device::cpu());
  const Workspace small = workspace.reserve(1);
  CHECK(reinterpret_cast<std::uintptr_t>(small.data) % 256 == 0);
  CHECK(small.bytes >= 1);
  CHECK(workspace.reserve(small.bytes).data == small.data);
  const Workspace large = workspace.reserve(1 << 20);
  CHECK(large.bytes >= 1 << 20);
  CHECK(reinterpret_cast<std::uintptr_t>(large.data) % 256 == 0);
  OwnedWorkspace moved = std::move(workspace);
  CHECK(moved.reserve(1 << 20).data == large.data);
  OwnedWorkspace assigned(Device::cpu());
  assigned = std::move(moved);
  CHECK(assigned.reserve(16).data == large.data);
}

TEST_CASE("workspace: what cannot be had is an error") {
  OwnedWorkspace automatic{Device::automatic()};
  CHECK(error_of([&] { automatic.reserve(1); }).code() == ErrorCode::kUsage);
  OwnedWorkspace cpu(Device::cpu());
  CHECK(error_of([&] { cpu.reserve(SIZE_MAX); }).code() == ErrorCode::kUsage);
}

}  // namespace
}  // namespace kiln::test
