// SPDX-License-Identifier: Apache-2.0
//
// get_kernel from end to end: a published folder in, a called op out.
#include <doctest/doctest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "install/install.hpp"
#include "kiln/kiln.hpp"
#include "published.hpp"
#include "sample.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

/// Counts what is done with files and folders of a tree.
class Watch {
 public:
  explicit Watch(const std::vector<fs::path>& roots) : fd_(::inotify_init1(IN_NONBLOCK)) {
    REQUIRE(fd_ >= 0);
    for (const fs::path& root : roots) {
      add(root);
      for (const auto& entry : fs::recursive_directory_iterator(root)) {
        if (entry.is_directory()) add(entry.path());
      }
    }
    events();  // the walk itself
  }
  ~Watch() { ::close(fd_); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  int events() const {
    std::array<char, 65536> buffer{};
    int count = 0;
    for (ssize_t size = 0; (size = ::read(fd_, buffer.data(), buffer.size())) > 0;) ++count;
    return count;
  }

 private:
  void add(const fs::path& path) {
    REQUIRE(::inotify_add_watch(fd_, path.c_str(), IN_ALL_EVENTS) >= 0);
  }
  int fd_;
};

TEST_CASE("get_kernel: a published folder becomes a kernel that computes") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const Kernel kernel = get_kernel("sample", sample.request);
  CHECK(kernel.name() == "sample");
  CHECK(kernel.version() == 1);
  CHECK(kernel.variant() == "cpu-base");
  CHECK(kernel.device() == Device::cpu());
  CHECK(kernel.resolution().decisions.size() == 1);
  CHECK(fs::exists(kernel.library()));

  std::array<float, 4> x{1, 2, 3, 4};
  std::array<float, 4> y{-9, -9, -9, -9};
  const std::array<Tensor, 2> tensors{Tensor(x.data(), DType::kFloat32, {2, 2}, Device::cpu()),
                                      Tensor(y.data(), DType::kFloat32, {2, 2}, Device::cpu())};
  OwnedWorkspace workspace(kernel.device());
  const Op op = kernel.op("add");
  op.run(tensors, {}, workspace.reserve(op.workspace_bytes(tensors)), nullptr);
  CHECK(y == std::array<float, 4>{2, 3, 4, 5});
}

TEST_CASE("get_kernel: the same request again touches neither disk nor registry") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const Kernel first = get_kernel("sample", sample.request);
  {
    const Watch watch({sample.scratch / "registry", sample.scratch / "cache"});
    const Kernel again = get_kernel("sample", sample.request);
    CHECK(watch.events() == 0);
    CHECK(&again.package() == &first.package());
    CHECK(read_file(first.library()).size() > 0);
    CHECK(watch.events() > 0);  // the watch does see a read
  }
  fs::remove_all(sample.scratch / "registry");
  fs::remove_all(sample.scratch / "cache");
  CHECK(get_kernel("sample", sample.request).library() == first.library());
}

TEST_CASE("get_kernel: a request that differs in one field is another kernel") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library(), "sample", 1, "cpu-one"),
                            cpu_draft(sample_library(), "sample", 1, "cpu-two")});
  sample.request.variant = "cpu-one";
  const Kernel one = get_kernel("sample", sample.request);
  sample.request.variant = "cpu-two";
  const Kernel two = get_kernel("sample", sample.request);
  CHECK(one.variant() == "cpu-one");
  CHECK(two.variant() == "cpu-two");
  CHECK(&one.package() != &two.package());
}

TEST_CASE("get_kernel: packages and versions with one soname live side by side") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library("plain"))});
  sample.published.publish({cpu_draft(sample_library("version2"), "sample", 2)});
  sample.published.publish({cpu_draft(sample_library("other"), "other")});
  const int before = loaded_libraries();
  const Kernel sample1 = get_kernel("sample", sample.request);
  const Kernel other = get_kernel("other", sample.request);
  sample.request.version = 2;
  const Kernel sample2 = get_kernel("sample", sample.request);
  CHECK(sample1.version() == 1);
  CHECK(sample2.version() == 2);
  CHECK(std::string_view(other.package().name) == "other");
  CHECK(sample1.op("add").name().data() != other.op("add").name().data());
  CHECK(loaded_libraries() == before + 3);
}

TEST_CASE("get_kernel: a second install reads the cache alone") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const Installed cold = install("sample", sample.request);
  CHECK(cold.traffic.requests > 0);
  CHECK(cold.traffic.bytes > 0);
  fs::remove_all(sample.published.root());
  const Installed warm = install("sample", sample.request);
  CHECK(warm.traffic.requests == 0);
  CHECK(warm.traffic.bytes == 0);
  CHECK(warm.package.library == cold.package.library);
}

TEST_CASE("get_kernel: a GPU variant is chosen and prepared for the GPU asked for") {
  Scratch scratch;
  const Environment sm("KILN_OVERRIDE_SM", "8.0,9.0");
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.4");
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library("plain")), gpu_draft(sample_library("gpu"))});
  Request request{.version = 1,
                  .device = Device::cuda(1),
                  .registry = published.root().string(),
                  .cache = scratch / "cache"};
  const Kernel kernel = get_kernel("sample", request);
  CHECK(kernel.variant() == "cu12.4-sm_90");
  CHECK(kernel.device() == Device::cuda(1));
  std::vector<std::string> overridden = kernel.resolution().host.overridden;
  CHECK(overridden == std::vector<std::string>{"KILN_OVERRIDE_CUDA", "KILN_OVERRIDE_SM"});
}

TEST_CASE("get_kernel: nothing fits, and the error says why for each and what would fit") {
  Scratch scratch;
  const Environment sm("KILN_OVERRIDE_SM", "8.0");
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.4");
  Published published(scratch / "registry");
  published.publish({gpu_draft(sample_library("gpu"), "sample", 1)});
  Draft fitting = gpu_draft(sample_library("gpu"), "sample", 3);
  fitting.variant.id = "cu12.4-sm_80";
  fitting.variant.needs.device_code = {{DeviceCode::Kind::kSass, {8, 0}, 0}};
  published.publish({fitting});
  const Error error = error_of([&] {
    get_kernel("sample", {.version = 1,
                          .device = Device::cuda(0),
                          .registry = published.root().string(),
                          .cache = scratch / "cache"});
  });
  CHECK(error.code() == ErrorCode::kNoVariant);
  CHECK_CONTAINS(error.what(), "cu12.4-sm_90");
  CHECK_CONTAINS(error.what(), "NO_DEVICE_CODE");
  CHECK_CONTAINS(error.what(), "sample@3 has a build for this machine: cu12.4-sm_80");
  CHECK_FALSE(fs::exists(scratch / "cache"));
  // A variant that was named: another version helps only if it has that one.
  for (const std::string variant : {"cu12.4-sm_80", "cu12.4-sm_90"}) {
    const std::string said = error_of([&] {
                               get_kernel("sample", {.version = 1,
                                                     .device = Device::cuda(0),
                                                     .registry = published.root().string(),
                                                     .variant = variant,
                                                     .cache = scratch / "cache"});
                             }).what();
    CHECK((said.find("Ask for version 3") != std::string::npos) == (variant == "cu12.4-sm_80"));
  }
}

TEST_CASE("get_kernel: a variant that was added after the install is found") {
  Sample sample;
  const Environment sm("KILN_OVERRIDE_SM", "9.0");
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.4");
  const Draft cpu = cpu_draft(sample_library());
  sample.published.publish({cpu});
  get_kernel("sample", sample.request);
  sample.published.publish({cpu, gpu_draft(sample_library("gpu"))});
  sample.request.device = Device::cuda(0);
  CHECK(get_kernel("sample", sample.request).variant() == "cu12.4-sm_90");
}

TEST_CASE("get_kernel: invalid requests") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  published.publish({cpu_draft(sample_library("version2"), "sample", 2)});
  const std::string root = published.root().string();
  struct Case {
    const char* name;
    int version;
    std::string registry;
    ErrorCode code;
    const char* text;
  };
  const std::vector<Case> cases{
      {"sample", 0, root, ErrorCode::kUsage, "has: 1, 2"},
      {"sample", -1, root, ErrorCode::kUsage, "version is -1"},
      {"Sample", 1, root, ErrorCode::kUsage, "not a package name"},
      {"../sample", 1, root, ErrorCode::kUsage, "not a package name"},
      {"sample", 7, root, ErrorCode::kNotFound, "published: 1, 2"},
      {"sampler", 1, root, ErrorCode::kNotFound, "published: sample"},
      {"sample", 1, root + "/nowhere", ErrorCode::kNotFound, "no such folder"},
      {"sample", 1, "ftp://example.org/x", ErrorCode::kUsage, "ftp://example.org/x"},
      {"sample", 1, "http://example.org", ErrorCode::kUsage, "plain http"},
      {"sample", 1, "https://user:secret@example.org", ErrorCode::kUsage, "never sends"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    CAPTURE(each.version);
    CAPTURE(each.registry);
    const Error error = error_of([&] {
      get_kernel(each.name,
                 {.version = each.version, .registry = each.registry, .cache = scratch / "cache"});
    });
    CHECK(error.code() == each.code);
    CHECK_CONTAINS(error.what(), each.text);
    CHECK(std::string(error.what()).find("secret") == std::string::npos);
  }
}

TEST_CASE("get_kernel: a failure is not remembered") {
  Sample sample;
  CHECK(error_of([&] { get_kernel("sample", sample.request); }).code() == ErrorCode::kNotFound);
  sample.published.publish({cpu_draft(sample_library())});
  CHECK(get_kernel("sample", sample.request).version() == 1);
}

TEST_CASE("get_kernel: an op that is not there lists those that are") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const Kernel kernel = get_kernel("sample", sample.request);
  const Error error = error_of([&] { kernel.op("multiply"); });
  CHECK(error.code() == ErrorCode::kNotFound);
  CHECK_CONTAINS(error.what(), "it has: add, probe");
}

TEST_CASE("get_kernel: of a kernel that is in this process, nothing is told") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  int told = 0;
  sample.request.on_event = [&](const Event&) { ++told; };
  get_kernel("sample", sample.request);
  CHECK(std::exchange(told, 0) > 0);
  get_kernel("sample", sample.request);
  CHECK(told == 0);
}

TEST_CASE("get_kernel: the environment names cache and registry") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Environment registry("KILN_REGISTRY", "file://" + published.root().string() + "/");
  const Environment cache("KILN_CACHE", (scratch / "cache").string());
  const Kernel kernel = get_kernel("sample", {.version = 1, .device = Device::cpu()});
  CHECK(kernel.library().string().starts_with((scratch / "cache").string()));
}

}  // namespace
}  // namespace kiln::test
