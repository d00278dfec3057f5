// SPDX-License-Identifier: Apache-2.0
//
// warm_path NAME@VERSION cpu|cuda|cold-cuda [SAMPLES]
//
// What get_kernel costs on a warm cache, against what a caller would do by hand: SHA-256 of the
// same file by OpenSSL and a bare dlopen of it. Each sample is a fresh process, and the two kinds
// alternate. Also the second call of each process. "cpu" takes the CPU variant; "cuda" that of GPU
// 0, in a process that has initialised CUDA as every program that computes there has; with
// "cold-cuda" it has not. On a GPU the first call also makes the context and loads the module into
// it, which a bare dlopen does not. Prints the figures as JSON, with machine, compiler and commit.
//
// Wants KILN_REGISTRY, and KILN_CACHE of its own; the first run installs. KILN_COMMIT says which
// commit this is where there is no source.
#include <dlfcn.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "documents/json.hpp"
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

/// One process of Kiln: "first call" and "each of many repeats", in microseconds.
void sample_kiln(const std::string& package, const std::string& device) {
  initialise(device);
  const Clock::time_point begin = Clock::now();
  const kiln::Kernel kernel = get(package, device);
  const double first = since(begin);
  constexpr int kRepeats = 10000;
  const Clock::time_point again = Clock::now();
  for (int i = 0; i < kRepeats; ++i) static_cast<void>(get(package, device));
  std::printf("%.3f %.4f\n", first, since(again) / kRepeats);
}

/// One process that does it by hand: hashes the file in one pass, and opens it by path.
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

std::string output_of(const std::string& command) {
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) fail("popen");
  std::string text;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  if (::pclose(pipe) != 0) fail("'" + command + "' failed");
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

struct Times {
  std::vector<double> first;
  std::vector<double> repeat;

  /// Adds those of this program, run once more as one of the two kinds.
  void sample(const std::string& kind, const std::string& argument, const std::string& device) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    const std::string text =
        output_of("'" + self + "' --" + kind + " '" + argument + "' " + device);
    if (std::sscanf(text.c_str(), "%lf %lf", &first.emplace_back(), &repeat.emplace_back()) != 2) {
      fail(text);
    }
  }
};

kiln::Json spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at_share = [&](double share) {
    return values[static_cast<std::size_t>(
        std::lround(share * static_cast<double>(values.size() - 1)))];
  };
  return {{"median", at_share(0.5)},
          {"p20", at_share(0.2)},
          {"p80", at_share(0.8)},
          {"samples", values.size()}};
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

kiln::Json circumstances() {
  utsname system{};
  ::uname(&system);
  std::array<char, 32> day{};
  const std::time_t now = std::time(nullptr);
  std::strftime(day.data(), day.size(), "%Y-%m-%d", std::gmtime(&now));
  const char* const commit = std::getenv("KILN_COMMIT");
  return {{"processor", processor()},
          {"cores", std::thread::hardware_concurrency()},
          {"kernel", system.release},
          {"compiler", "g++ " __VERSION__},
          {"build", KILN_BUILD_TYPE},
          {"openssl", OpenSSL_version(OPENSSL_VERSION)},
          {"commit", commit != nullptr
                         ? commit
                         : output_of("git -C '" KILN_SOURCE "' describe --always --dirty")},
          {"date", day.data()}};
}

void measure(const std::string& package, const std::string& device, int samples) {
  const kiln::Kernel kernel = get(package, device);  // installs, and says which file
  const std::string library = kernel.library().string();
  Times ours;
  Times bare;
  for (int i = 0; i < samples; ++i) {
    ours.sample("kiln", package, device);
    bare.sample("bare", library, device);
  }
  const kiln::Json first = spread(ours.first);
  const kiln::Json by_hand = spread(bare.first);
  const kiln::Json document = {{"benchmark", "warm_path"},
                               {"unit", "us"},
                               {"package", package},
                               {"device", device},
                               {"variant", kernel.variant()},
                               {"library_bytes", std::filesystem::file_size(library)},
                               {"first_call", first},
                               {"sha256_and_dlopen", by_hand},
                               {"ratio_to_sha256_and_dlopen",
                                first["median"].get<double>() / by_hand["median"].get<double>()},
                               {"repeat_call", spread(ours.repeat)},
                               {"machine", circumstances()}};
  std::printf("%s\n", document.dump(2).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() < 2) fail("usage: warm_path NAME@VERSION cpu|cuda|cold-cuda [SAMPLES]");
    if (words[0] == "--kiln") {
      sample_kiln(words.at(1), words.at(2));
    } else if (words[0] == "--bare") {
      sample_bare(words.at(1), words.at(2));
    } else {
      measure(words[0], words[1], words.size() > 2 ? std::max(1, std::stoi(words[2])) : 31);
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
