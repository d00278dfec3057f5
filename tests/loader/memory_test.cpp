// SPDX-License-Identifier: Apache-2.0
//
// Memory: one allocation of a get_kernel fails, of this process's C++ or of a C library below it.
// At each eleventh, or at every one with KILN_EXHAUSTIVE=1, in a child: it ends with the kernel, a
// bad_alloc or an error that blames nobody for it, and never with an abort. Its own program, as it
// replaces malloc.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <new>
#include <string>

#include "kiln/kiln.hpp"
#include "loader_paths.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "settings/trust_file.hpp"
#include "signed.hpp"

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
}

namespace {

/// How many allocations there were, and which one fails; 0: none.
std::atomic<long> allocations = 0;
std::atomic<long> failing = 0;

bool fails() {
  return ++allocations == failing;
}

void* no_memory() {
  errno = ENOMEM;
  return nullptr;
}

}  // namespace

extern "C" {
void* malloc(std::size_t bytes) {
  return fails() ? no_memory() : __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  return fails() ? no_memory() : __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  return fails() ? no_memory() : __libc_realloc(memory, bytes);
}
}

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

constexpr int kNoMemory = 90;
constexpr int kBlames = 91;
constexpr int kOther = 92;

/// How a child that asks for the kernel ends, its n-th allocation failing; its words are in `said`.
int end_with(long nth, const Request& request, const fs::path& said) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    std::freopen(said.c_str(), "w", stderr);
    std::setvbuf(stderr, nullptr, _IONBF, 0);  // an abort flushes nothing
    allocations = 0;
    failing = nth;
    try {
      code = get_kernel("sample", request).version() == 1 ? 0 : kOther;
    } catch (const Error& error) {
      failing = 0;
      const std::string text = error.what();
      std::fprintf(stderr, "%s\n", error.what());
      const bool blames = text.find("publisher") != std::string::npos ||
                          error.code() == ErrorCode::kIntegrity ||
                          error.code() == ErrorCode::kTrust;
      code = blames ? kBlames : static_cast<int>(error.code());
    } catch (const std::bad_alloc&) {
      code = kNoMemory;
    } catch (const std::exception& error) {
      failing = 0;
      std::fprintf(stderr, "%s\n", error.what());
      code = kOther;
    }
    failing = 0;
    std::fflush(stderr);
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// How many allocations the request takes.
long count(const Request& request) {
  const pid_t child = ::fork();
  if (child == 0) {
    allocations = 0;
    get_kernel("sample", request);
    const long found = allocations;
    ::_exit(found < 256 ? 255 : static_cast<int>(found / 64));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return (WEXITSTATUS(status) + 1) * 64;
}

TEST_CASE("memory: an allocation that fails is out of memory, nobody's fault, and no abort") {
  const char* const all = std::getenv("KILN_EXHAUSTIVE");
  const long step = all != nullptr && *all != '\0' ? 1 : 11;
  const Environment disk("TMPDIR", ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
  const Scratch scratch;
  fs::copy_file(paths::kSettings, scratch / "config.json");
  const Environment config("KILN_CONFIG", (scratch / "config.json").string());
  Published published(scratch / "unsigned");
  published.publish({cpu_draft(sample_library())});
  Published vouched(scratch / "signed");
  Signed metadata(vouched.root());
  metadata.add("sample", 1, vouched.publish({cpu_draft(sample_library())}));
  metadata.publish();
  const Environment unsigned_one("KILN_UNSIGNED", published.root().string());
  trust_root(vouched.root().string(), metadata.first_root());
  std::map<int, int> ends;
  for (const Published* registry : {&published, &vouched}) {
    for (const bool warm : {false, true}) {
      const Request request{.version = 1,
                            .device = Device::cpu(),
                            .registry = registry->root().string(),
                            .cache = scratch / "cache"};
      const auto begin = [&] {
        if (!warm) fs::remove_all(scratch / "cache");
      };
      begin();
      const long last = count(request);
      for (long nth = 1; nth <= last; nth += step) {
        begin();
        const int end = end_with(nth, request, scratch / "said");
        ++ends[end];
        const bool fine = end >= 0 && end != kBlames && end != kOther;
        CHECK_MESSAGE(fine, registry->root().filename().string(), warm ? " warm" : " cold", ", ",
                      nth, " of ", last, ": ", end, ": ", read_file(scratch / "said"));
      }
    }
  }
  for (const auto& [end, times] : ends) MESSAGE("ended with ", end, ": ", times, " times");
  CHECK(ends[kNoMemory] > 0);
}

TEST_CASE("memory: an op's run allocates nothing") {
  const Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Kernel kernel = get_kernel("sample", {.version = 1,
                                              .device = Device::cpu(),
                                              .registry = published.root().string(),
                                              .cache = scratch / "cache"});
  const Op add = kernel.op("add");
  std::array<float, 6> x{1, 2, 3, 4, 5, 6};
  std::array<float, 6> y{};
  const Tensor tensors[] = {Tensor(x.data(), DType::kFloat32, {2, 3}, Device::cpu()),
                            Tensor(y.data(), DType::kFloat32, {2, 3}, Device::cpu())};
  const Attribute attributes[] = {Attribute(2.0)};
  alignas(256) std::array<std::byte, 4096> memory;
  for (const char* const which : {"the first call", "the second call"}) {
    const long before = allocations;
    const bool fits = add.workspace_bytes(tensors, attributes) <= memory.size();
    add.run(tensors, attributes, {memory.data(), memory.size()});
    const long after = allocations;
    CHECK_MESSAGE(after == before, which);
    CHECK(fits);
  }
  CHECK(y[0] == 3);
}

}  // namespace
}  // namespace kiln::test
