// SPDX-License-Identifier: Apache-2.0
//
// Table: the C tables and calls of a package, as C++ meets them. Below call, load and the C API.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "kiln/abi.h"
#include "kiln/device.hpp"
#include "kiln/error.hpp"

namespace kiln {

/// The op at this position. Ops may have more fields than this Kiln knows, or fewer.
inline const kiln_op& op_at(const kiln_package& package, std::uint32_t position) {
  const auto* const first = reinterpret_cast<const char*>(package.ops);
  return *reinterpret_cast<const kiln_op*>(first + std::size_t{position} * package.op_stride);
}

/// kiln_op.signature; 0 where the package's table does not reach so far.
inline std::uint64_t stated_signature(const kiln_op& op) {
  constexpr std::size_t kReach = offsetof(kiln_op, signature) + sizeof(op.signature);
  return op.struct_size >= kReach ? op.signature : 0;
}

/// Of a device that is not automatic.
inline DLDevice dl_device(Device device) {
  if (device.kind == Device::Kind::kCuda) return {kDLCUDA, device.ordinal};
  return {kDLCPU, 0};
}

/// A package's table and its entries, to be changed. Entries keep the size that the package gave
/// them: what a later minor appended is copied too.
class TableCopy {
 public:
  explicit TableCopy(const kiln_package& table)
      : package_(std::max<std::size_t>(table.struct_size, sizeof(kiln_package))),
        ops_(std::size_t{table.op_count} * table.op_stride) {
    std::memcpy(package_.data(), &table, table.struct_size);
    std::memcpy(ops_.data(), table.ops, ops_.size());
    package().ops = reinterpret_cast<const kiln_op*>(ops_.data());
  }

  kiln_package& package() { return *reinterpret_cast<kiln_package*>(package_.data()); }
  kiln_op& op(std::uint32_t at) {
    return *reinterpret_cast<kiln_op*>(ops_.data() + std::size_t{at} * package().op_stride);
  }

 private:
  std::vector<char> package_;
  std::vector<char> ops_;
};

/// Of a dtype's name in package.json.
std::optional<DLDataType> find_dtype(std::string_view name);

/// The code for a package's status, which is not KILN_OK. `error` has a whole text afterwards.
inline ErrorCode failure_of(std::int32_t status, kiln_error& error) {
  error.text[sizeof(error.text) - 1] = '\0';  // a package may not have
  if (error.text[0] == '\0') {
    std::snprintf(error.text, sizeof error.text,
                  "the package failed with status %d and gave no text", status);
  }
  return status == KILN_DEVICE_ERROR ? ErrorCode::kDevice : ErrorCode::kInvalidCall;
}

}  // namespace kiln
