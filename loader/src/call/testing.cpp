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
constexpr unsigned char kPoison = 0xff;

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

Array::Array(Device device, DType dtype, std::vector<std::int64_t> shape)
    : device_(device), dtype_(dtype), shape_(std::move(shape)), memory_(device) {
  with_dtype(dtype, [](auto, auto) {});
  for (const std::int64_t extent : shape_) size_ *= static_cast<std::size_t>(extent);
  const std::size_t bytes = size_ * size_of(dtype) + 2 * kGuard;
  data_ = static_cast<std::byte*>(memory_.reserve(bytes).data);
  const std::vector<unsigned char> poison(bytes, kPoison);
  copy(data_, poison.data(), bytes, true);
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
  with_dtype(dtype_, [&](auto to_bits, auto) {
    std::vector<decltype(to_bits(0.0))> bits(size_);
    std::ranges::transform(values, bits.begin(), to_bits);
    copy(data_ + kGuard, bits.data(), size_ * sizeof(bits[0]), true);
  });
}

std::vector<double> Array::values() const {
  std::vector<double> values(size_);
  with_dtype(dtype_, [&](auto to_bits, auto from_bits) {
    std::vector<decltype(to_bits(0.0))> bits(size_);
    copy(bits.data(), data_ + kGuard, size_ * sizeof(bits[0]), false);
    std::ranges::transform(bits, values.begin(), from_bits);
  });
  return values;
}

bool Array::guards_hold() const {
  std::vector<unsigned char> guards(2 * kGuard);
  copy(guards.data(), data_, kGuard, false);
  copy(guards.data() + kGuard, data_ + kGuard + size_ * size_of(dtype_), kGuard, false);
  return std::ranges::all_of(guards, [](unsigned char byte) { return byte == kPoison; });
}

Tensor Array::tensor() const {
  return Tensor(static_cast<void*>(data_ + kGuard), dtype_, std::span(shape_), device_);
}

bool Check::compare(std::string_view name, const Array& found, std::span<const double> expected,
                    double bound) {
  const std::vector<double> values = found.values();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  double error = values.size() == expected.size() ? 0 : kInfinite;
  for (std::size_t i = 0; i < std::min(values.size(), expected.size()); ++i) {
    const double difference = std::abs(values[i] - expected[i]);
    const double relative = difference == 0 ? 0 : largest > 0 ? difference / largest : kInfinite;
    error = std::max(error, std::isnan(relative) ? kInfinite : relative);
  }
  const bool whole = found.guards_hold();
  const bool passed = whole && error <= bound;
  ++cases_;
  failed_ += passed ? 0 : 1;
  double& worst = worst_.try_emplace(std::string(name)).first->second;
  worst = std::max(worst, error);
  if (!passed) {
    std::printf("FAILED %.*s: error %.2e, at most %.2e is allowed%s\n",
                static_cast<int>(name.size()), name.data(), error, bound,
                whole ? "" : "; it wrote outside of the array");
  }
  return passed;
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

}  // namespace kiln::testing
