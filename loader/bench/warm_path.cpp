// SPDX-License-Identifier: Apache-2.0
//
//   warm_path --kiln NAME@VERSION DEVICE   a process of Kiln: get_kernel and nothing else
//   warm_path --bare LIBRARY DEVICE        one that does by hand what a caller would do
//   warm_path --build                      what this program was built with
//
// The samples of warm_path.py, which says what they are for. Both print microseconds of the first
// call and of each of many repeats; Kiln's also prints the variant and its library.
#include <dlfcn.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/kernel.hpp"

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("warm_path: " + what);
}

kiln::Kernel get(std::string_view package, const std::string& device) {
  const std::size_t at = package.find('@');
  int version = 0;
  if (at != std::string_view::npos) {
    std::from_chars(package.data() + at + 1, package.data() + package.size(), version);
  }
  if (version < 1) fail("'" + std::string(package) + "' is not NAME@VERSION");
  return kiln::get_kernel(
      package.substr(0, at),
      {.version = version,
       .device = device == "cpu" ? kiln::Device::cpu() : kiln::Device::cuda(0)});
}

/// As the program around the call has done long before it.
void initialise(const std::string& device) {
  if (device != "cuda") return;
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(::dlerror());
  const auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(library, "cuInit"));
  if (init == nullptr || init(0) != 0) fail("CUDA does not start");
}

void sample_kiln(const std::string& package, const std::string& device) {
  initialise(device);
  const Clock::time_point begin = Clock::now();
  const kiln::Kernel kernel = get(package, device);
  const double first = since(begin);
  constexpr int kRepeats = 10000;
  const Clock::time_point again = Clock::now();
  for (int i = 0; i < kRepeats; ++i) static_cast<void>(get(package, device));
  std::printf("%.3f %.4f\n", first, since(again) / kRepeats);
  std::cout << kernel.variant() << "\n" << kernel.library().string() << "\n";
}

/// Hashes the file in one pass, and opens it by path.
void sample_bare(const std::string& path, const std::string& device) {
  initialise(device);
  const Clock::time_point begin = Clock::now();
  std::string bytes(std::filesystem::file_size(path), '\0');
  std::ifstream(path, std::ios::binary).read(bytes.data(), std::ssize(bytes));
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) fail(::dlerror());
  std::printf("%.3f 0\n", since(begin));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() == 3 && words[0] == "--kiln") {
      sample_kiln(words[1], words[2]);
    } else if (words.size() == 3 && words[0] == "--bare") {
      sample_bare(words[1], words[2]);
    } else if (words == std::vector<std::string>{"--build"}) {
      std::printf("g++ %s\n%s\n%s\n", __VERSION__, KILN_BUILD_TYPE,
                  OpenSSL_version(OPENSSL_VERSION));
    } else {
      fail("usage: warm_path --kiln NAME@VERSION DEVICE; warm_path.py measures");
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
