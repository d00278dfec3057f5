// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/library/table.hpp"

#include <kiln/abi.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "base/join.hpp"
#include "base/quote.hpp"
#include "build-matrix/codegen/ops_header.hpp"
#include "documents/json.hpp"
#include "documents/ops.hpp"
#include "kiln/error.hpp"
#include "kiln/op.hpp"

namespace kiln::build {
namespace {

/// A struct of the ABI in the library's data.
class Record {
 public:
  Record(const ElfLibrary& library, std::uint64_t address) : library_(library), at_(address) {}

  template <class Number>
  Number number(std::size_t offset) const {
    return library_.number_at<Number>(at_ + offset);
  }
  /// What a pointer in it points to; nothing where none is there.
  std::optional<std::uint64_t> pointer(std::size_t offset) const {
    const auto found = library_.pointers.find(at_ + offset);
    return found == library_.pointers.end() ? std::nullopt : std::optional(found->second);
  }
  std::string text(std::size_t offset) const {
    const std::optional<std::uint64_t> target = pointer(offset);
    return target ? std::string(library_.text_at(*target)) : std::string();
  }

 private:
  const ElfLibrary& library_;
  std::uint64_t at_;
};

/// It is found by its shape: sizes and ABI version, and pointers where it has some.
std::optional<Record> find_table(const ElfLibrary& library) {
  for (const auto& [place, target] : library.pointers) {
    if (place < offsetof(kiln_package, name)) continue;
    const Record record(library, place - offsetof(kiln_package, name));
    const auto size = record.number<std::uint32_t>(offsetof(kiln_package, struct_size));
    const auto stride = record.number<std::uint32_t>(offsetof(kiln_package, op_stride));
    if (size < KILN_PACKAGE_FIRST_BYTES || size > 4096 || stride < KILN_OP_FIRST_BYTES ||
        stride > 4096 ||
        record.number<std::uint16_t>(offsetof(kiln_package, abi_major)) != KILN_ABI_MAJOR) {
      continue;
    }
    if (record.pointer(offsetof(kiln_package, build_id)) &&
        record.pointer(offsetof(kiln_package, ops)) &&
        record.pointer(offsetof(kiln_package, prepare))) {
      return record;
    }
  }
  return std::nullopt;
}

void expect(std::string_view what, const std::string& found, const std::string& expected,
            std::vector<std::string>& violations) {
  if (found == expected) return;
  violations.push_back("its table has the " + std::string(what) + " " + found + ", stated is " +
                       expected);
}

/// The signature that a caller of the op is checked against; 0 where its schema is not readable.
std::uint64_t signature_in(const Record& op, std::uint32_t stride, const std::string& package) {
  const std::size_t at = offsetof(kiln_op, signature);
  const auto signature = stride >= at + sizeof(std::uint64_t) ? op.number<std::uint64_t>(at) : 0;
  if (signature != 0) return signature;
  try {
    const Json json = parse_json(op.text(offsetof(kiln_op, schema)), "its schema");
    return signature_hash(signature_text(package, JsonView(json, "its schema")));
  } catch (const Error&) {
    return 0;
  }
}

void check_ops(const ElfLibrary& library, const Record& table, const Package& package,
               std::vector<std::string>& violations) {
  const auto stride = table.number<std::uint32_t>(offsetof(kiln_package, op_stride));
  const auto count = table.number<std::uint32_t>(offsetof(kiln_package, op_count));
  const std::uint64_t ops = table.pointer(offsetof(kiln_package, ops)).value_or(0);
  std::vector<std::string> found;
  for (std::uint32_t i = 0; i < std::min<std::uint32_t>(count, 1024); ++i) {
    const Record op(library, ops + std::uint64_t{i} * stride);
    found.push_back(op.text(offsetof(kiln_op, name)));
    const auto stated = std::ranges::find(package.ops, found.back(), &OpSchema::name);
    if (stated == package.ops.end()) continue;
    const std::string signature = signature_of(package, *stated);
    if (signature_in(op, stride, package.name) != signature_hash(signature)) {
      violations.push_back("its op " + stated->name +
                           " has another signature than package.json: " + signature +
                           "; its schema is " + quote(op.text(offsetof(kiln_op, schema))));
    }
  }
  for (const OpSchema& op : package.ops) {
    if (std::ranges::find(found, op.name) == found.end()) {
      violations.push_back("its table has no op " + op.name + ", which is stated, but " +
                           join(found, ", ", [](const std::string& name) { return quote(name); }));
    }
  }
}

}  // namespace

std::string check_table(const ElfLibrary& library, const Package& package, const Binary& binary,
                        std::vector<std::string>& violations) {
  if (!std::ranges::binary_search(library.exported, std::string(KILN_PACKAGE_SYMBOL))) {
    violations.emplace_back("does not export " KILN_PACKAGE_SYMBOL);
    return {};
  }
  const std::optional<Record> table = find_table(library);
  if (!table) {
    violations.push_back("has no constant kiln_package of ABI " + std::to_string(KILN_ABI_MAJOR) +
                         " in its data; what " KILN_PACKAGE_SYMBOL
                         " returns has to be there before it is called");
    return {};
  }
  expect("name", quote(table->text(offsetof(kiln_package, name))), quote(package.name), violations);
  expect("version", std::to_string(table->number<std::int32_t>(offsetof(kiln_package, version))),
         std::to_string(package.version), violations);
  expect("device type",
         std::to_string(table->number<std::int32_t>(offsetof(kiln_package, device_type))),
         std::to_string(binary.toolkit ? kDLCUDA : kDLCPU), violations);
  check_ops(library, *table, package, violations);
  return table->text(offsetof(kiln_package, build_id));
}

}  // namespace kiln::build
