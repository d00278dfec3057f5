// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/verbs/tune_timing.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/number.hpp"
#include "call/table.hpp"
#include "call/testing_copy.hpp"
#include "documents/choices.hpp"
#include "kiln/error.hpp"
#include "kiln/float16.hpp"

namespace kiln::cli {
namespace {

// Beyond the caches: a model's next layer does not find its weights there either.
constexpr std::size_t kRotatedBytes = std::size_t{192} << 20;
constexpr std::size_t kRotatedBytesOnCpu = std::size_t{64} << 20;
constexpr std::size_t kMostSets = 16;
constexpr std::size_t kBlock = 1048573;  // values that repeat: a prime, so that rows differ
constexpr double kMostCalls = 1e5;

[[noreturn]] void fail_tune(ErrorCode code, const OpLayout& layout, const std::string& found) {
  throw Error(code, "time " + layout.name + ": " + found);
}

void put(DLDataType dtype, double value, char* to) {
  const auto store = [to](auto bits) { std::memcpy(to, &bits, sizeof bits); };
  const auto single = static_cast<float>(value);
  if (dtype.bits == 64) return store(value);
  if (dtype.bits == 32) return store(single);
  store(dtype.code == kDLBfloat ? to_bfloat16(single) : to_float16(single));
}

double get(DLDataType dtype, const char* from) {
  const auto load = [from]<class Bits>(Bits bits) {
    std::memcpy(&bits, from, sizeof bits);
    return bits;
  };
  if (dtype.bits == 64) return load(double{});
  if (dtype.bits == 32) return static_cast<double>(load(float{}));
  const auto bits = load(std::uint16_t{});
  return static_cast<double>(dtype.code == kDLBfloat ? from_bfloat16(bits) : from_float16(bits));
}

double distance_of(DLDataType dtype, const std::vector<char>& found, const std::vector<char>& own) {
  const std::size_t size = dtype.bits / std::size_t{8};
  double apart = 0;
  double whole = 0;
  for (std::size_t at = 0; at < own.size(); at += size) {
    if (std::memcmp(&found[at], &own[at], size) == 0) {
      const double value = get(dtype, &own[at]);
      whole += std::isfinite(value) ? value * value : 0;
      continue;
    }
    const double a = get(dtype, &found[at]);
    const double b = get(dtype, &own[at]);
    apart += (a - b) * (a - b);
    whole += b * b;
  }
  if (apart == 0) return 0;
  const double distance = std::sqrt(apart / whole);
  return std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
}

}  // namespace

TimedCalls::TimedCalls(const TimedOp& timed, const std::map<std::string, std::int64_t>& extents)
    : timed_(timed), workspace_(timed.device), anchor_(timed.device) {
  for (const OpLayout::Tensor& tensor : timed_.layout.tensors) add_tensor(tensor, extents);
  attributes_.resize(timed_.attribute + 1);
  make_sets();
}

void TimedCalls::add_tensor(const OpLayout::Tensor& tensor,
                            const std::map<std::string, std::int64_t>& extents) {
  const bool there =
      !tensor.optional || std::ranges::find(timed_.with, tensor.name) != timed_.with.end();
  const DLDataType dtype = find_dtype(dtype_of(tensor, timed_.dtype)).value_or(DLDataType{});
  const std::string why = there ? why_not_timed(tensor, timed_.dtype) : "";
  if (!why.empty()) fail_tune(ErrorCode::kUsage, timed_.layout, why);
  std::vector<std::int64_t> shape;
  std::size_t bytes = dtype.bits / std::size_t{8};
  for (const std::string& extent : tensor.shape) {
    const auto number = parse_decimal(extent, std::numeric_limits<std::int32_t>::max());
    shape.push_back(number ? static_cast<std::int64_t>(*number) : there ? extents.at(extent) : 1);
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(shape.back()), &bytes)) {
      fail_tune(ErrorCode::kUsage, timed_.layout, tensor.name + " is larger than memory can be");
    }
  }
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  if (there && tensor.output) outputs_.push_back(there_.size());
  there_.push_back(there);
  dtypes_.push_back(dtype);
  shapes_.push_back(std::move(shape));
  strides_.push_back(std::move(strides));
  bytes_.push_back(there ? bytes : 0);
}

void TimedCalls::make_sets() {
  std::size_t bytes = 1;
  for (const std::size_t each : bytes_) bytes += each;
  const std::size_t wanted =
      timed_.device.kind == Device::Kind::kCuda ? kRotatedBytes : kRotatedBytesOnCpu;
  sets_.resize(std::min(kMostSets, wanted / bytes + 1));
  for (std::size_t s = 0; s < sets_.size(); ++s) {
    Set& set = sets_[s];
    for (std::size_t i = 0; i < there_.size(); ++i) {
      set.memory.emplace_back(timed_.device);
      void* const data =
          there_[i] ? set.memory[i].reserve(std::max<std::size_t>(bytes_[i], 1)).data : nullptr;
      if (there_[i] && !timed_.layout.tensors[i].output) fill(data, i, s);
      set.tensors.push_back({data, dl_device(timed_.device),
                             static_cast<std::int32_t>(shapes_[i].size()), dtypes_[i],
                             shapes_[i].data(), strides_[i].data(), 0});
    }
    for (std::size_t i = 0; i < there_.size(); ++i) {
      set.pointers.push_back(there_[i] ? &set.tensors[i] : nullptr);
    }
  }
}

/// The first input has a variance of 1. The others are divided by the root of their rows' length:
/// a product with them keeps it, as a network's does.
void TimedCalls::fill(void* to, std::size_t tensor, std::size_t set) {
  const std::size_t size = dtypes_[tensor].bits / std::size_t{8};
  const bool is_weight = tensor > 0 && shapes_[tensor].size() > 1;
  const double most =
      std::sqrt(3.0 / (is_weight ? static_cast<double>(shapes_[tensor].back()) : 1.0));
  std::vector<char> block(std::min(kBlock * size, bytes_[tensor]));
  std::mt19937 random(static_cast<std::uint32_t>(100 * set + tensor + 1));
  std::uniform_real_distribution<double> values(-most, most);
  for (std::size_t at = 0; at < block.size(); at += size) {
    put(dtypes_[tensor], values(random), &block[at]);
  }
  for (std::size_t at = 0; at < bytes_[tensor]; at += block.size()) {
    copy_for_test(timed_.device, static_cast<char*>(to) + at, block.data(),
                  std::min(block.size(), bytes_[tensor] - at), true);
  }
}

kiln_call TimedCalls::call_of(const std::string& choice, const Set& set) {
  kiln_attribute& value = attributes_[timed_.attribute];
  value = {};
  if (!choice.empty()) {
    const auto& fallback = timed_.layout.attributes[timed_.attribute].fallback;
    if (std::holds_alternative<std::string>(fallback)) {
      value.kind = KILN_ATTRIBUTE_STRING;
      value.value.as_string = choice.c_str();
    } else {
      value.kind = KILN_ATTRIBUTE_INT;
      value.value.as_int = static_cast<std::int64_t>(parse_decimal(choice, INT32_MAX).value_or(0));
    }
  }
  kiln_call call{};
  call.struct_size = sizeof call;
  call.tensor_count = static_cast<std::uint32_t>(set.pointers.size());
  call.tensors = set.pointers.data();
  call.attribute_count = static_cast<std::uint32_t>(attributes_.size());
  call.attributes = attributes_.data();
  const Workspace workspace = workspace_.reserve(reserved_);
  call.workspace = workspace.data;
  call.workspace_bytes = workspace.bytes;
  return call;
}

std::int32_t TimedCalls::run(const std::string& choice, const Set& set, kiln_error& error) {
  const kiln_call call = call_of(choice, set);
  error.text[0] = '\0';
  return timed_.op->run(&call, &error);
}

/// The largest of all choices: it does not grow while they are timed.
std::int32_t TimedCalls::reserve(const std::string& choice, kiln_error& error) {
  const kiln_call call = call_of(choice, sets_.front());
  std::size_t needed = 0;
  error.text[0] = '\0';
  const std::int32_t status = timed_.op->workspace_bytes(&call, &needed, &error);
  if (status == KILN_OK) reserved_ = std::max({reserved_, needed, std::size_t{1}});
  return status;
}

/// A copy to the device waits for all that was enqueued there.
void TimedCalls::wait() {
  if (timed_.device.kind != Device::Kind::kCuda) return;
  const char byte = 0;
  copy_for_test(timed_.device, anchor_.reserve(1).data, &byte, 1, true);
}

bool TimedCalls::takes(const std::string& choice) {
  kiln_error error;
  std::int32_t status = reserve(choice, error);
  if (status == KILN_OK) status = run(choice, sets_.front(), error);
  if (status == KILN_OK) {
    wait();
    return true;
  }
  const ErrorCode code = failure_of(status, error);
  if (code == ErrorCode::kDevice || choice.empty()) fail_tune(code, timed_.layout, error.text);
  return false;
}

double TimedCalls::seconds(const std::string& choice, double at_least) {
  double& expected = expected_[choice];
  const double wanted = expected > 0 ? std::ceil(at_least / expected) : 1;
  const auto calls = static_cast<int>(std::clamp(wanted, 1.0, kMostCalls));
  wait();
  kiln_error error;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) {
    const std::int32_t status = run(choice, sets_[next_++ % sets_.size()], error);
    if (status != KILN_OK) fail_tune(failure_of(status, error), timed_.layout, error.text);
  }
  wait();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return expected = std::max(took.count(), 1e-9) / calls;
}

TimedCalls::Outputs TimedCalls::compute(const std::string& choice) {
  Outputs outputs;
  const Set& set = sets_.front();
  for (const std::size_t i : outputs_) {
    // NaN in each type: what a choice leaves out shows.
    outputs.emplace_back(bytes_[i], static_cast<char>(0xff));
    copy_for_test(timed_.device, set.tensors[i].data, outputs.back().data(), bytes_[i], true);
  }
  kiln_error error;
  const std::int32_t status = run(choice, set, error);
  if (status != KILN_OK) fail_tune(failure_of(status, error), timed_.layout, error.text);
  wait();
  for (std::size_t n = 0; n < outputs_.size(); ++n) {
    const std::size_t i = outputs_[n];
    copy_for_test(timed_.device, outputs[n].data(), set.tensors[i].data, bytes_[i], false);
  }
  return outputs;
}

double TimedCalls::distance(const std::string& choice) {
  if (own_.empty()) own_ = compute("");
  const Outputs found = compute(choice);
  double largest = 0;
  for (std::size_t n = 0; n < outputs_.size(); ++n) {
    largest = std::max(largest, distance_of(dtypes_[outputs_[n]], found[n], own_[n]));
  }
  return largest;
}

}  // namespace kiln::cli
