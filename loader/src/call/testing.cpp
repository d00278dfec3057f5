// SPDX-License-Identifier: Apache-2.0
#include "kiln/testing.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <limits>
#include <utility>

#include "base/draft.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "kiln/float16.hpp"

namespace kiln::testing {
namespace {

constexpr std::size_t kGuard = 256;
constexpr std::byte kPoison{0xff};

[[noreturn]] void fail_device(const std::string& what) {
  throw Error(ErrorCode::kDevice, "copy a test's array: " + what);
}

/// The CUDA driver's functions, by name: what allocated the memory has loaded it.
template <class... Arguments>
void call_driver(const char* name, Arguments... arguments) {
  static void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const found = driver == nullptr ? nullptr : ::dlsym(driver, name);
  if (found == nullptr) fail_device(std::string("libcuda.so.1 has no ") + name);
  const int result = reinterpret_cast<int (*)(Arguments...)>(found)(arguments...);
  if (result != 0) fail_device(std::string(name) + " gives CUresult " + std::to_string(result));
}

/// Calls `visit` with a function from double to the dtype's bits, and one back.
template <class Visit>
void with_dtype(DType dtype, Visit visit) {
  const auto plain = [&]<class Value>(Value) {
    visit([](double value) { return static_cast<Value>(value); },
          [](Value value) { return static_cast<double>(value); });
  };
  switch (dtype) {
    case DType::kFloat64:
      return plain(double{});
    case DType::kFloat32:
      return plain(float{});
    case DType::kInt8:
      return plain(std::int8_t{});
    case DType::kInt16:
      return plain(std::int16_t{});
    case DType::kInt32:
      return plain(std::int32_t{});
    case DType::kInt64:
      return plain(std::int64_t{});
    case DType::kUInt8:
    case DType::kBool:
      return plain(std::uint8_t{});
    case DType::kFloat16:
      return visit([](double value) { return to_float16(static_cast<float>(value)); },
                   [](std::uint16_t bits) { return static_cast<double>(from_float16(bits)); });
    case DType::kBFloat16:
      return visit([](double value) { return to_bfloat16(static_cast<float>(value)); },
                   [](std::uint16_t bits) { return static_cast<double>(from_bfloat16(bits)); });
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
      break;
  }
  throw Error(ErrorCode::kUsage,
              "make a test's array: 8-bit floating-point types have no conversion here");
}

std::string first_line(const std::filesystem::path& file, std::string_view begin = "") {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(begin)) return line;
  }
  return "";
}

std::string hardware_of(const Kernel& kernel) {
  const Resolution& resolution = kernel.resolution();
  if (kernel.device().kind == Device::Kind::kCuda) {
    for (const Gpu& gpu : resolution.host.gpus) {
      if (gpu.ordinal == kernel.device().ordinal) return gpu.name;
    }
    return "unknown GPU";
  }
  const std::string line = first_line("/proc/cpuinfo", "model name");
  const std::size_t colon = line.find(": ");
  return colon == std::string::npos ? to_string(resolution.host.cpu) : line.substr(colon + 2);
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof(text), "%Y-%m-%d", &utc);
  return text;
}

}  // namespace

Array::Array(Device device, DType dtype, std::vector<std::int64_t> shape, std::int64_t gap)
    : device_(device),
      dtype_(dtype),
      shape_(std::move(shape)),
      strides_(shape_.size(), 1),
      memory_(device) {
  with_dtype(dtype, [](auto, auto) {});
  for (const std::int64_t extent : shape_) size_ *= static_cast<std::size_t>(extent);
  if (!shape_.empty()) row_ = static_cast<std::size_t>(shape_.back());
  distance_ = row_ + static_cast<std::size_t>(gap);
  for (std::size_t d = shape_.size(); d-- > 1;) {
    strides_[d - 1] =
        d + 1 == shape_.size() ? static_cast<std::int64_t>(distance_) : strides_[d] * shape_[d];
  }
  const std::vector<std::byte> poison(bytes(), kPoison);
  data_ = static_cast<std::byte*>(memory_.reserve(poison.size()).data);
  copy(data_, poison.data(), poison.size(), true);
}

std::size_t Array::bytes() const {
  const std::size_t elements = size_ == 0 ? 0 : (size_ / row_ - 1) * distance_ + row_;
  return elements * size_of(dtype_) + 2 * kGuard;
}

std::vector<std::byte> Array::download() const {
  std::vector<std::byte> all(bytes());
  copy(all.data(), data_, all.size(), false);
  return all;
}

void Array::copy(void* to, const void* from, std::size_t bytes, bool upload) const {
  if (device_.kind != Device::Kind::kCuda) {
    std::memcpy(to, from, bytes);
    return;
  }
  constexpr int kContextAttribute = 1;  // CU_POINTER_ATTRIBUTE_CONTEXT
  const auto address = [](const void* memory) {
    return static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(memory));
  };
  void* context = nullptr;
  call_driver("cuPointerGetAttribute", static_cast<void*>(&context), kContextAttribute,
              address(data_));
  call_driver("cuCtxPushCurrent_v2", context);
  if (upload) {
    call_driver("cuMemcpyHtoD_v2", address(to), from, bytes);
  } else {
    call_driver("cuMemcpyDtoH_v2", to, address(from), bytes);
  }
  // Of pageable memory the copy may be under way still, and a non-blocking stream would not wait.
  call_driver("cuCtxSynchronize");
  call_driver("cuCtxPopCurrent_v2", &context);
}

void Array::set(std::span<const double> values) {
  if (values.size() != size_) {
    throw Error(ErrorCode::kUsage, "fill a test's array: it has " + std::to_string(size_) +
                                       " elements, found " + std::to_string(values.size()) +
                                       " values");
  }
  std::vector<std::byte> all(bytes(), kPoison);
  with_dtype(dtype_, [&](auto to_bits, auto) {
    for (std::size_t i = 0; i < size_; ++i) {
      const auto bits = to_bits(values[i]);
      std::memcpy(&all[offset(i)], &bits, sizeof(bits));
    }
  });
  copy(data_, all.data(), all.size(), true);
}

std::vector<double> Array::values() const {
  std::vector<double> values(size_);
  const std::vector<std::byte> all = download();
  with_dtype(dtype_, [&](auto to_bits, auto from_bits) {
    for (std::size_t i = 0; i < size_; ++i) {
      decltype(to_bits(0.0)) bits;
      std::memcpy(&bits, &all[offset(i)], sizeof(bits));
      values[i] = from_bits(bits);
    }
  });
  return values;
}

bool Array::guards_hold() const {
  std::vector<std::byte> all = download();
  for (std::size_t i = 0; i < size_; i += row_) {
    std::fill_n(all.begin() + static_cast<std::ptrdiff_t>(offset(i)), row_ * size_of(dtype_),
                kPoison);
  }
  return std::ranges::all_of(all, [](std::byte byte) { return byte == kPoison; });
}

std::size_t Array::offset(std::size_t element) const {
  return kGuard + (element / row_ * distance_ + element % row_) * size_of(dtype_);
}

Tensor Array::tensor() const {
  const Tensor compact(static_cast<void*>(data_ + kGuard), dtype_, std::span(shape_), device_);
  DLTensor dl = compact.dl();
  dl.strides = const_cast<std::int64_t*>(strides_.data());  // DLPack has no const
  return Tensor(dl);
}

bool Check::compare(std::string_view name, const Array& found, std::span<const double> expected,
                    double bound, std::span<const double> terms) {
  const std::vector<double> values = found.values();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const double step = found.dtype() == DType::kFloat16 ? std::ldexp(1.0, -25) : 0;
  double largest = 0;
  for (const double value : expected) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  const bool alike =
      values.size() == expected.size() && (terms.empty() || terms.size() == expected.size());
  double error = alike ? 0 : kInfinite;
  for (std::size_t i = 0; alike && i < values.size(); ++i) {
    if (values[i] == expected[i] || (std::isnan(values[i]) && std::isnan(expected[i]))) continue;
    const double difference = std::max(std::abs(values[i] - expected[i]) - step, 0.0);
    const double whole = terms.empty() ? largest : terms[i];
    const double relative = difference == 0 ? 0 : whole > 0 ? difference / whole : kInfinite;
    error = std::max(error, std::isnan(relative) ? kInfinite : relative);
  }
  const bool whole = found.guards_hold();
  double& worst = worst_.try_emplace(std::string(name)).first->second;
  worst = std::max(worst, error);
  const bool passed = count(whole && error <= bound);
  if (!passed) {
    std::printf("FAILED %.*s: error %.2e, at most %.2e is allowed%s\n",
                static_cast<int>(name.size()), name.data(), error, bound,
                whole ? "" : "; it wrote outside of the array's rows");
  }
  return passed;
}

bool Check::refused(std::string_view words, const std::function<void()>& call, ErrorCode code) {
  std::string found = "it was computed";
  try {
    call();
  } catch (const Error& error) {
    found = error.what();
    if (error.code() == code && found.find(words) != std::string::npos) return count(true);
  }
  std::printf("FAILED a refusal: expected \"%.*s\", found: %s\n", static_cast<int>(words.size()),
              words.data(), found.c_str());
  return count(false);
}

void Check::write_record(const std::filesystem::path& folder) const {
  Json worst = Json::object();
  for (const auto& [name, error] : worst_) {
    worst[name] = std::isfinite(error) ? Json(error) : Json(nullptr);
  }
  Json record = {{"schema", "kiln.record/1"},
                 {"hardware", hardware_of(kernel_)},
                 {"date", today()},
                 {"results",
                  {{{"variant", kernel_.variant()},
                    {"library", digest_of_file(kernel_.library()).str()},
                    {"cases", cases_},
                    {"failed", failed_},
                    {"worst", std::move(worst)}}}}};
  if (kernel_.device().kind == Device::Kind::kCuda) {
    if (const std::string driver = first_line("/sys/module/nvidia/version"); !driver.empty()) {
      record["driver"] = driver;
    }
    if (const auto& cuda = kernel_.resolution().host.driver) record["cuda"] = to_string(*cuda);
  }
  make_folders(absolute_path(folder));
  publish_bytes(folder, folder / (std::string(kernel_.variant()) + ".json"), record.dump(2) + "\n",
                0644);
}

int run_check(int argc, char** argv, std::string_view package, int version,
              const std::function<void(Check& check, bool light)>& all) {
  std::filesystem::path records;
  std::string registry;
  std::string device_word;
  bool light = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--light") {
      light = true;
    } else if ((word == "--registry" || word == "--device") && i + 1 < argc) {
      (word == "--registry" ? registry : device_word) = argv[++i];
    } else if (word.starts_with("-")) {
      std::fprintf(stderr, "%s: no option %s\n", argv[0], argv[i]);
      return static_cast<int>(ErrorCode::kUsage);
    } else {
      records = word;
    }
  }
  int ran = 0;
  bool good = true;
  for (const Device device : {Device::cpu(), Device::cuda(0)}) {
    const bool gpu = device.kind == Device::Kind::kCuda;
    if (!device_word.empty() && device_word != (gpu ? "cuda" : "cpu")) continue;
    try {
      Check check(
          get_kernel(package, {.version = version, .device = device, .registry = registry}));
      all(check, light);
      if (!records.empty()) check.write_record(records);
      std::printf("%s %s: %s double precision in %llu cases\n", std::string(package).c_str(),
                  std::string(check.kernel().variant()).c_str(),
                  check.passed() ? "agrees with" : "DIFFERS from",
                  static_cast<unsigned long long>(check.cases()));
      good = good && check.passed();
      ++ran;
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      const bool no_gpu = gpu && error.code() == ErrorCode::kUsage;
      const bool not_for_it = device_word.empty() && error.code() == ErrorCode::kNoVariant;
      if (!no_gpu && !not_for_it) return static_cast<int>(error.code());
    }
  }
  return ran == 0 ? 77 : good ? 0 : 1;
}

}  // namespace kiln::testing
