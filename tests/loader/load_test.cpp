// SPDX-License-Identifier: Apache-2.0
//
// Load: libraries whose bytes are the promised ones and that are still no package.
#include <doctest/doctest.h>
#include <elf.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "check_add.hpp"
#include "install/install.hpp"
#include "kiln/kiln.hpp"
#include "published.hpp"
#include "sample.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

Error load_error(const Draft& draft) {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({draft});
  return error_of([&] {
    get_kernel(draft.config.name, {.version = draft.config.version,
                                   .device = Device::cpu(),
                                   .registry = published.root().string(),
                                   .cache = scratch / "cache"});
  });
}

TEST_CASE("load: a table that is not the promised one is refused with what was found") {
  struct Case {
    const char* library;
    ErrorCode code;
    const char* text;
  };
  const std::vector<Case> cases{
      {"version2", ErrorCode::kLoad, "has version 2, expected 1"},
      {"other", ErrorCode::kLoad, R"(has name "other", expected "sample")"},
      {"other_build", ErrorCode::kLoad, R"(has build id "other-build", expected "sample-build")"},
      {"gpu", ErrorCode::kLoad, "has device type 2, expected 1"},
      {"abi_major", ErrorCode::kLoad, "has ABI major 2, expected 1"},
      {"short_table", ErrorCode::kLoad, "has 16 bytes"},
      {"short_stride", ErrorCode::kLoad, "have 16 bytes each, expected at least 40"},
      {"no_ops", ErrorCode::kLoad, "has no ops"},
      {"no_run", ErrorCode::kLoad, "op 1 of the library's table is incomplete"},
      {"no_table", ErrorCode::kLoad, "returned no table"},
      {"no_symbol", ErrorCode::kLoad, "does not export kiln_package_v1"},
      {"undefined", ErrorCode::kLoad, "a_function_that_nobody_defines"},
      {"fail_prepare", ErrorCode::kDevice, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.library);
    const Error error = load_error(cpu_draft(sample_library(each.library)));
    CHECK(error.code() == each.code);
    CHECK_CONTAINS(error.what(), each.text);
    CHECK_CONTAINS(error.what(), "sample@1 cpu-base");
  }
}

/// The highest descriptor of this process.
int highest_descriptor() {
  int highest = 0;
  for (const auto& each : fs::directory_iterator("/proc/self/fd")) {
    highest = std::max(highest, std::stoi(each.path().filename().string()));
  }
  return highest;
}

TEST_CASE("load: nothing is kept of a library that was refused, however many there are") {
  const int libraries = loaded_libraries();
  const int highest = highest_descriptor();
  for (int round = 0; round < 20; ++round) {
    for (const char* kind : {"undefined", "no_symbol", "no_table", "abi_major", "other"}) {
      CHECK(load_error(cpu_draft(sample_library(kind))).code() == ErrorCode::kLoad);
    }
  }
  CHECK(loaded_libraries() == libraries);
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const Kernel kernel = get_kernel("sample", sample.request);
  check_add(kernel);
  CHECK(highest_descriptor() <= highest + 8);  // 100 were refused
}

TEST_CASE("load: a table of a later minor, with fields appended to it, loads and runs") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library("grown"))});
  const Kernel kernel = get_kernel("sample", sample.request);
  CHECK(kernel.package().abi_minor == 1000);
  CHECK(kernel.package().struct_size > sizeof(kiln_package));
  CHECK(kernel.package().op_stride > sizeof(kiln_op));
  check_add(kernel);
}

TEST_CASE("load: an entry point that another library exports is not called") {
  for (const char* symbol : {"abort", "pause", "getpid", "exit"}) {
    CAPTURE(symbol);
    Draft draft = cpu_draft(sample_library());
    draft.config.symbol = symbol;
    const Error error = load_error(draft);
    CHECK(error.code() == ErrorCode::kLoad);
    CHECK_CONTAINS(error.what(), std::string("does not export ") + symbol);
  }
}

TEST_CASE("load: a file that is no library of this machine is refused before the linker sees it") {
  const std::string good = sample_library();
  struct Case {
    const char* name;
    std::string bytes;
    const char* text;
  };
  std::string foreign = good;
  const Elf64_Half machine = EM_RISCV;
  std::memcpy(foreign.data() + offsetof(Elf64_Ehdr, e_machine), &machine, sizeof(machine));
  std::string narrow = good;
  narrow[EI_CLASS] = ELFCLASS32;
  const std::vector<Case> cases{
      {"text", std::string(1000, 'x'), "no 64-bit little-endian ELF"},
      {"short",
       "\x7f"
       "ELF",
       "too short"},
      {"another machine", foreign, "is for ELF machine 243"},
      {"32-bit", narrow, "no 64-bit little-endian ELF"},
      {"cut off", good.substr(0, 200), "the dynamic linker refuses"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    const int before = loaded_libraries();
    const Error error = load_error(cpu_draft(each.bytes));
    CHECK(error.code() == ErrorCode::kLoad);
    CHECK_CONTAINS(error.what(), each.text);
    CHECK(loaded_libraries() == before);
  }
}

TEST_CASE("load: two requests that lead to one file share one library") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  Request request{.version = 1,
                  .device = Device::cpu(),
                  .registry = published.root().string(),
                  .cache = scratch / "one"};
  const int before = loaded_libraries();
  const Kernel one = get_kernel("sample", request);
  request.cache = scratch / "two";
  const Kernel two = get_kernel("sample", request);
  CHECK(one.library() != two.library());
  CHECK(&one.package() == &two.package());
  CHECK(loaded_libraries() == before + 1);
}

TEST_CASE("load: a library of the cache that became a link is refused") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const fs::path library = install("sample", sample.request).package.library;
  fs::rename(library, sample.scratch / "moved.so");
  fs::create_symlink(sample.scratch / "moved.so", library);
  const Error error = error_of([&] { get_kernel("sample", sample.request); });
  CHECK(error.code() == ErrorCode::kIntegrity);
  CHECK_CONTAINS(error.what(), library.string());
}

/// Whether this file itself, not a copy of it, is mapped into this process.
bool is_mapped(const fs::path& file) {
  return read_file("/proc/self/maps").find(file.string()) != std::string::npos;
}

TEST_CASE("load: by path, a debugger finds the file; it is hashed all the same") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  Request request{.version = 1,
                  .device = Device::cpu(),
                  .registry = published.root().string(),
                  .cache = scratch / "cache",
                  .load_mode = LoadMode::kPath};
  const int before = loaded_libraries();
  const Kernel kernel = get_kernel("sample", request);
  CHECK(is_mapped(kernel.library()));
  CHECK(loaded_libraries() == before);
  request.load_mode = LoadMode::kMemory;  // the same bytes are in this process already
  CHECK(&get_kernel("sample", request).package() == &kernel.package());

  published.publish({cpu_draft(sample_library(), "other")});
  const fs::path library = install("other", request).package.library;
  damage(library);
  request.load_mode = LoadMode::kPath;
  const Error error = error_of([&] { get_kernel("other", request); });
  CHECK(error.code() == ErrorCode::kIntegrity);
  CHECK_FALSE(is_mapped(library));
}

TEST_CASE("load: the environment can ask for a load by path, and a wrong word is refused") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  {
    const Environment mode("KILN_LOAD_MODE", "file");
    const Error error = error_of([&] { get_kernel("sample", sample.request); });
    CHECK(error.code() == ErrorCode::kUsage);
    CHECK_CONTAINS(error.what(), "KILN_LOAD_MODE is \"file\"");
  }
  const Environment mode("KILN_LOAD_MODE", "path");
  CHECK(is_mapped(get_kernel("sample", sample.request).library()));
}

}  // namespace
}  // namespace kiln::test
