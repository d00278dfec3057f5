// SPDX-License-Identifier: Apache-2.0
//
// Entry: what makes a library of a package's check (kiln/check.h), in the place of libkiln: the
// kernel that the host has loaded, memory and copies by way of the host, and the one export. Its
// calls, tensors and comparisons are the loader's own sources, compiled with it: alone, each would
// take the compiler as long, for headers. For one thread, in a process of its own.
//
// The check's main() is compiled as kiln_check_main, so that one source is a program and this.
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "call/call.cpp"
#include "call/table.hpp"
#include "call/tensor.cpp"
#include "call/testing.cpp"
#include "kiln/check.h"
#include "kiln/kernel.hpp"
#include "kiln/testing.hpp"

int kiln_check_main(int argc, char** argv);

namespace kiln {
namespace {

const kiln_check_host* host = nullptr;  // of the call under way

Device device_of(DLDevice device) {
  return device.device_type == kDLCUDA ? Device::cuda(device.device_id) : Device::cpu();
}

int32_t fail(kiln_error* error, std::int32_t status, const char* text) {
  error->status = status;
  std::snprintf(error->text, sizeof error->text, "%s", text);
  return status;
}

void report(const testing::Case& one) {
  const std::string name(one.name);
  kiln_check_case c{};
  c.struct_size = sizeof c;
  c.passed = one.passed ? 1 : 0;
  c.name = name.c_str();
  c.text = one.text.c_str();
  c.error = one.error;
  c.bound = one.bound;
  std::vector<std::byte> bits;
  const bool wanted = host->wants_values != 0 && one.found != nullptr;
  if (wanted && one.found->size() == one.expected.size()) {
    bits = one.found->bits();
    c.found = bits.data();
    c.expected = one.expected.data();
    c.count = one.expected.size();
    const Tensor tensor = one.found->tensor();
    c.dtype = tensor.dl().dtype;
  }
  host->report(host->context, &c);
}

}  // namespace

/// Whatever is asked for: there is one.
Kernel get_kernel(std::string_view, const Request& request) {
  return Kernel(
      std::make_shared<const Kernel::Loaded>(Kernel::Loaded{
          host->package->name, host->variant, device_of(host->device), {}, {}, {}, host->package}),
      request.threads);
}

Op Kernel::op(std::string_view name) const {
  for (std::uint32_t i = 0; i < package().op_count; ++i) {
    const kiln_op& op = op_at(package(), i);
    if (op.name == name) return {&op, threads_};
  }
  throw Error(ErrorCode::kNotFound,
              "the check calls op '" + std::string(name) + "', which the library does not have");
}

Op Kernel::checked_op(const OpSignature& wanted) const {
  for (std::uint32_t i = 0; i < package().op_count; ++i) {
    const kiln_op& op = op_at(package(), i);
    if (stated_signature(op) == wanted.hash) return {&op, threads_};
  }
  throw Error(ErrorCode::kUsage, "the check calls " + std::string(wanted.text) +
                                     ", which the library's op does not take");
}

void OwnedWorkspace::Free::operator()(void* memory) const noexcept {
  host->release(host->context, memory);
}

Workspace OwnedWorkspace::reserve(std::size_t bytes) {
  if (memory_ && bytes <= bytes_) return {memory_.get(), bytes_};
  memory_.reset();
  void* const memory = host->allocate(host->context, bytes);
  if (memory == nullptr) {
    throw Error(ErrorCode::kDevice,
                "the check needs " + std::to_string(bytes) + " bytes of memory on the device");
  }
  memory_ = {memory, Free{device_, nullptr, false}};
  bytes_ = bytes;
  return {memory, bytes};
}

namespace testing {

void Array::copy(void* to, const void* from, std::size_t bytes, bool upload) const {
  if (host->copy(host->context, to, from, bytes, upload ? 1 : 0) != 0) {
    throw Error(ErrorCode::kDevice, "copy a test's array: the device refuses");
  }
}

int run_check(int, char**, std::string_view package, int version,
              const std::function<void(Check& check, bool light)>& all) {
  Check check(get_kernel(package, {.version = version}), report);
  all(check, host->full == 0);
  return 0;
}

}  // namespace testing
}  // namespace kiln

extern "C" __attribute__((visibility("default"))) std::int32_t kiln_check_v1(
    const kiln_check_host* given, kiln_error* error) {
  kiln::host = given;
  char name[] = "check";
  char* arguments[] = {name, nullptr};
  try {
    if (kiln_check_main(1, arguments) == 0) return KILN_OK;
    return kiln::fail(error, KILN_UNSUPPORTED, "the check's main ended with an error");
  } catch (const kiln::Error& caught) {
    const bool device = caught.code() == kiln::ErrorCode::kDevice;
    return kiln::fail(error, device ? KILN_DEVICE_ERROR : KILN_INVALID_ARGUMENT, caught.what());
  } catch (const std::exception& caught) {
    return kiln::fail(error, KILN_UNSUPPORTED, caught.what());
  }
}
