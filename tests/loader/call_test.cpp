// SPDX-License-Identifier: Apache-2.0
//
// Call: arguments over the C ABI, and a package's answers as errors.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

/// A registry of one library, and a request for it.
struct Called {
  Scratch scratch;
  Published published{scratch / "registry"};
  Request request;

  explicit Called(const char* library) {
    published.publish({cpu_draft(sample_library(library))});
    request = {.version = 1,
               .device = Device::cpu(),
               .registry = published.root().string(),
               .cache = scratch / "cache"};
  }
};

Kernel kernel_of(const char* library) {
  return get_kernel("sample", Called(library).request);
}

const Kernel& kernel() {
  static const Kernel instance = kernel_of("plain");
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

/// The arguments of "add" as a header that was made of another schema would have them.
template <const auto& kPackageName, const auto& kText>
struct Add {
  static constexpr OpSignature kSignature{kPackageName, "add", kText};
  struct Attributes {
    double amount = 1.0;
    friend std::array<Attribute, 1> attributes_of(const Attributes& a) { return {a.amount}; }
  };
  RequiredTensor x;
  RequiredTensor y;
  Attributes attributes = {};

  friend std::array<const Tensor*, 2> tensors_of(const Add& a) { return {&a.x, &a.y}; }
};

constexpr char kSample[] = "sample";
constexpr char kOther[] = "other";
constexpr char kWhole[] =
    "sample.add(x: float32 [M,N] rows, y!: x [M,N] rows; amount: float = 1.0, times: int = 1)";
constexpr char kOneAttribute[] =
    "sample.add(x: float32 [M,N] rows, y!: x [M,N] rows; amount: float = 1.0)";
constexpr char kNoAttribute[] = "sample.add(x: float32 [M,N] rows, y!: x [M,N] rows)";

TEST_CASE("typed op: made where the op takes what its header says, or more attributes") {
  OwnedWorkspace workspace(Device::cpu());
  const auto check = [&](const auto& op) {
    Square square;
    op.run({.x = square.tensors[0], .y = square.tensors[1], .attributes = {.amount = 7.0}},
           workspace.reserve(64));
    CHECK(square.y[0] == 8.0f);
    CHECK(op.workspace_bytes({.x = square.tensors[0], .y = square.tensors[1]}) == 64);
  };
  check(kernel().op<Add<kSample, kWhole>>());
  check(kernel().op<Add<kSample, kOneAttribute>>());
  check(kernel().op<Add<kSample, kNoAttribute>>());
}

constexpr char kStated[] = "sample.add(as stated)";

TEST_CASE("typed op: the integer that the package states is all that is compared") {
  const Kernel stated = kernel_of("stated");
  CHECK(stated.package().ops[0].signature == signature_hash(kStated));
  stated.op<Add<kSample, kStated>>();
  CHECK(error_of([] { kernel().op<Add<kSample, kStated>>(); }).code() == ErrorCode::kUsage);
  stated.op<Add<kSample, kWhole>>();  // its schema is looked at where the integer is another one
}

TEST_CASE("typed op: of a package that states no signature, its schema decides") {
  const Kernel first = kernel_of("first");
  CHECK(error_of([&] { first.op<Add<kSample, kStated>>(); }).code() == ErrorCode::kUsage);
  first.op<Add<kSample, kWhole>>();
  first.op<Add<kSample, kNoAttribute>>();
}

/// A layer as packages have them: an op, what is given once, a workspace of its own.
class AddAmount {
 public:
  struct Weights {
    double amount;
  };
  AddAmount(const Kernel& kernel, Weights weights)
      : add_(kernel.op<Add<kSample, kWhole>>()), amount_(weights.amount), owned_(kernel.device()) {}
  void forward(const Tensor& x, const Tensor& y) {
    add_.run({.x = x, .y = y, .attributes = {.amount = amount_}}, owned_.reserve(64));
  }
  const void* workspace() { return owned_.reserve(1).data; }

 private:
  TypedOp<Add<kSample, kWhole>> add_;
  double amount_;
  OwnedWorkspace owned_;
};

TEST_CASE("layer: a copy for each thread, of the same weights and with its own workspace") {
  auto layer = kernel().layer<AddAmount>({.amount = 3.0});
  layer.forward(Square().tensors[0], Square().tensors[1]);
  constexpr int kThreads = 4;
  std::array<float, kThreads> found{};
  std::array<const void*, kThreads> workspaces{};
  {
    std::vector<std::jthread> workers;
    for (std::size_t i = 0; i < kThreads; ++i) {
      workers.emplace_back([layer, i, &found, &workspaces]() mutable {
        for (int call = 0; call < 100; ++call) {
          Square square;
          layer.forward(square.tensors[0], square.tensors[1]);
          found.at(i) = square.y[3];
        }
        workspaces.at(i) = layer.workspace();
      });
    }
  }
  for (std::size_t i = 0; i < kThreads; ++i) {
    CHECK(found.at(i) == 7.0f);
    CHECK(workspaces.at(i) != layer.workspace());
  }
}

constexpr char kReordered[] =
    "sample.add(y!: float32 [M,N] rows, x: y [M,N] rows; amount: float = 1.0, times: int = 1)";
constexpr char kOptional[] =
    "sample.add(x: float32 [M,N] rows, y?!: x [M,N] rows; amount: float = 1.0, times: int = 1)";
constexpr char kOneTensor[] = "sample.add(x: float32 [M,N] rows; amount: float = 1.0)";
constexpr char kOtherDType[] =
    "sample.add(x: float16 [M,N] rows, y!: x [M,N] rows; amount: float = 1.0, times: int = 1)";
constexpr char kHalfAWord[] =
    "sample.add(x: float32 [M,N] rows, y!: x [M,N] rows; amount: float = 1.0, times: int = 10)";
constexpr char kMore[] =
    "sample.add(x: float32 [M,N] rows, y!: x [M,N] rows; amount: float = 1.0, times: int = 1, "
    "more: int = 0)";

template <const auto& kPackageName, const auto& kText>
void check_refused(const char* said) {
  const Error error = error_of([] { kernel().op<Add<kPackageName, kText>>(); });
  CHECK(error.code() == ErrorCode::kUsage);
  CHECK_CONTAINS(error.what(), "take op add of sample@1: ");
  CHECK_CONTAINS(error.what(), said);
}

TEST_CASE("typed op: of another package, or with other arguments, is refused, and says which") {
  check_refused<kOther, kWhole>("the program's header is of package other. Get that kernel");
  check_refused<kSample, kReordered>(
      "it takes \"x: float32 [M,N] rows\" where the program was compiled for \"y!: float32 [M,N] "
      "rows\". Take the header of this version of the package");
  check_refused<kSample, kOptional>("for \"y?!: x [M,N] rows\"");
  check_refused<kSample, kOneTensor>(
      "it takes \"y!: x [M,N] rows\" where the program was compiled for \"amount: float = 1.0\"");
  check_refused<kSample, kOtherDType>("for \"x: float16 [M,N] rows\"");
  check_refused<kSample, kHalfAWord>("for \"times: int = 10\"");
  check_refused<kSample, kMore>("it takes nothing where the program was compiled for \"more: int");
}

TEST_CASE("threads: the request's bound comes with each call, and is no part of the kernel") {
  const auto told = [](const Kernel& asked) {
    return std::string(error_of([&] { asked.op("probe").run({}, {}, {}); }).what());
  };
  Called world("plain");
  const Kernel any = get_kernel("sample", world.request);
  CHECK(told(any) == "the package failed with status 2 and gave no text");
  world.request.threads = 3;
  const Kernel bounded = get_kernel("sample", world.request);
  CHECK(told(bounded) == "/3");
  CHECK(told(any) == "the package failed with status 2 and gave no text");
  CHECK(&bounded.library() == &any.library());  // one load
  world.request.threads = -1;
  const Error error = error_of([&] { get_kernel("sample", world.request); });
  CHECK(error.code() == ErrorCode::kUsage);
  CHECK_CONTAINS(error.what(), "threads is -1, expected 1 or more, or 0 for no bound");
}

TEST_CASE("workspace: a copy is for the same device and has memory of its own") {
  OwnedWorkspace workspace(Device::cpu());
  const Workspace first = workspace.reserve(100);
  OwnedWorkspace copy = workspace;
  CHECK(copy.reserve(100).data != first.data);
  copy = workspace;
  CHECK(copy.reserve(100).data != first.data);
  CHECK(workspace.reserve(100).data == first.data);
}

TEST_CASE("stream: of its own type, and the default one is null") {
  static_assert(!std::is_convertible_v<void*, Stream>);
  static_assert(!std::is_convertible_v<float*, Stream>);
  static_assert(std::is_convertible_v<CUstream_st*, Stream>);
  int place = 0;
  CHECK(Stream::of_handle(&place).handle() == static_cast<void*>(&place));
  CHECK(Stream() == Stream(nullptr));
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
