// SPDX-License-Identifier: Apache-2.0
//
// warm_path NAME@VERSION [--device cpu|cuda|cold-cuda] [--samples N] [--out FILE]
//
// What get_kernel costs on a warm cache, against what a caller would do by hand: SHA-256 of the
// same file by OpenSSL's EVP and a bare dlopen of it; and against the least that could be done,
// which hashes as Kiln does, without EVP's set-up. Each sample is a fresh process, and the three
// kinds alternate. Also the second call of each process. The CPU variant is taken, or with "cuda"
// that of GPU 0, in a process that has initialised CUDA as every program that computes there has;
// with "cold-cuda" it has not; the first call then also makes the GPU's context and loads the
// module into it, which a bare dlopen does not. Prints a table; --out writes the figures as JSON,
// with machine, compiler and commit.
//
// Wants KILN_REGISTRY, and KILN_CACHE of its own; the first run installs. KILN_COMMIT says which
// commit this is where there is no source.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <dlfcn.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
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
using Microseconds = std::chrono::duration<double, std::micro>;

double since(Clock::time_point begin) {
  return Microseconds(Clock::now() - begin).count();
}

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("warm_path: " + what);
}

struct Spec {
  std::string name;
  int version = 0;
  std::string device;
};

Spec parse_spec(std::string_view text, const std::string& device) {
  const std::size_t at = text.find('@');
  Spec spec{std::string(text.substr(0, at)), 0, device};
  if (at != std::string_view::npos) {
    std::from_chars(text.data() + at + 1, text.data() + text.size(), spec.version);
  }
  if (spec.version < 1) fail("'" + std::string(text) + "' is not NAME@VERSION");
  return spec;
}

kiln::Kernel get(const Spec& spec) {
  const kiln::Device device = spec.device == "cpu" ? kiln::Device::cpu() : kiln::Device::cuda(0);
  return kiln::get_kernel(spec.name, {.version = spec.version, .device = device});
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
void sample_kiln(const Spec& spec) {
  initialise(spec.device);
  const Clock::time_point begin = Clock::now();
  const kiln::Kernel kernel = get(spec);
  const double first = since(begin);
  constexpr int kRepeats = 10000;
  const Clock::time_point again = Clock::now();
  for (int i = 0; i < kRepeats; ++i) static_cast<void>(get(spec));
  std::printf("%.3f %.4f\n", first, since(again) / kRepeats);
}

struct Evp {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  std::array<unsigned char, 32> digest{};
  Evp() { EVP_DigestInit_ex(context, EVP_sha256(), nullptr); }
  void update(const char* bytes, std::size_t count) { EVP_DigestUpdate(context, bytes, count); }
  void finish() { EVP_DigestFinal_ex(context, digest.data(), nullptr); }
};

struct LowLevel {
  SHA256_CTX context;
  std::array<unsigned char, 32> digest{};
  LowLevel() { SHA256_Init(&context); }
  void update(const char* bytes, std::size_t count) { SHA256_Update(&context, bytes, count); }
  void finish() { SHA256_Final(digest.data(), &context); }
};

/// One process that does it by hand: hashes the file in one pass, and opens it by path.
template <class Hash>
void sample_bare(const char* path, const std::string& device) {
  initialise(device);
  const Clock::time_point begin = Clock::now();
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) fail("cannot open " + std::string(path));
  Hash hash;
  static std::array<char, std::size_t{256} * 1024> buffer;
  for (ssize_t count = 0; (count = ::read(file, buffer.data(), buffer.size())) > 0;) {
    hash.update(buffer.data(), static_cast<std::size_t>(count));
  }
  hash.finish();
  ::close(file);
  if (::dlopen(path, RTLD_NOW | RTLD_LOCAL) == nullptr) fail(::dlerror());
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

struct Sample {
  double first = 0;
  double repeat = 0;
};

/// This program once more, as one of the three kinds.
Sample run_self(const std::string& kind, const std::string& argument, const std::string& device) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  Sample sample;
  const std::string text = output_of("'" + self + "' --" + kind + " '" + argument + "' " + device);
  if (std::sscanf(text.c_str(), "%lf %lf", &sample.first, &sample.repeat) != 2) fail(text);
  return sample;
}

/// The value below which this share of the samples lies.
double at_share(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(
      std::lround(share * static_cast<double>(values.size() - 1)))];
}

kiln::Json spread(const std::vector<double>& values) {
  return {{"median", at_share(values, 0.5)},
          {"p20", at_share(values, 0.2)},
          {"p80", at_share(values, 0.8)},
          {"samples", values.size()}};
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string commit() {
  // Set where the program runs without its source.
  if (const char* const given = std::getenv("KILN_COMMIT")) return given;
  return output_of("git -C '" KILN_SOURCE "' describe --always --dirty");
}

kiln::Json circumstances() {
  utsname system{};
  ::uname(&system);
  std::array<char, 32> day{};
  const std::time_t now = std::time(nullptr);
  std::strftime(day.data(), day.size(), "%Y-%m-%d", std::gmtime(&now));
  return {{"processor", processor()}, {"cores", std::thread::hardware_concurrency()},
          {"kernel", system.release}, {"compiler", "g++ " __VERSION__},
          {"build", KILN_BUILD_TYPE}, {"openssl", OpenSSL_version(OPENSSL_VERSION)},
          {"commit", commit()},       {"date", day.data()}};
}

void measure(const Spec& spec, const std::string& text, int samples, const std::string& out) {
  const kiln::Kernel kernel = get(spec);  // installs, and says which file
  const std::string library = kernel.library().string();
  std::vector<double> first;
  std::vector<double> bare;
  std::vector<double> least;
  std::vector<double> repeat;
  for (int i = -1; i < samples; ++i) {  // one round to warm the page cache
    const Sample ours = run_self("kiln", text, spec.device);
    const Sample by_hand = run_self("bare", library, spec.device);
    const Sample floor = run_self("least", library, spec.device);
    if (i < 0) continue;
    first.push_back(ours.first);
    repeat.push_back(ours.repeat);
    bare.push_back(by_hand.first);
    least.push_back(floor.first);
  }
  const double median = at_share(first, 0.5);
  const kiln::Json document = {{"benchmark", "warm_path"},
                               {"unit", "us"},
                               {"package", text},
                               {"device", spec.device},
                               {"variant", kernel.variant()},
                               {"library_bytes", std::filesystem::file_size(library)},
                               {"first_call", spread(first)},
                               {"sha256_and_dlopen", spread(bare)},
                               {"low_level_sha256_and_dlopen", spread(least)},
                               {"ratio_to_sha256_and_dlopen", median / at_share(bare, 0.5)},
                               {"ratio_to_low_level", median / at_share(least, 0.5)},
                               {"repeat_call", spread(repeat)},
                               {"machine", circumstances()}};
  std::printf("%s\n", document.dump(2).c_str());
  if (!out.empty()) std::ofstream(out) << document.dump(2) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.empty()) fail("usage: warm_path NAME@VERSION [--device cpu|cuda|cold-cuda] …");
    if (words[0] == "--kiln") return sample_kiln(parse_spec(words.at(1), words.at(2))), 0;
    if (words[0] == "--bare") return sample_bare<Evp>(words.at(1).c_str(), words.at(2)), 0;
    if (words[0] == "--least") return sample_bare<LowLevel>(words.at(1).c_str(), words.at(2)), 0;
    int samples = 31;
    std::string device = "cpu";
    std::string out;
    for (std::size_t i = 1; i + 1 < words.size(); i += 2) {
      if (words[i] == "--samples") samples = std::max(1, std::atoi(words[i + 1].c_str()));
      if (words[i] == "--device") device = words[i + 1];
      if (words[i] == "--out") out = words[i + 1];
    }
    measure(parse_spec(words[0], device), words[0], samples, out);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
