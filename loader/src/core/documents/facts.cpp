// SPDX-License-Identifier: Apache-2.0
#include "documents/facts.hpp"

#include <algorithm>

#include "base/number.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"

namespace kiln {

void check_schema(const JsonView& document, std::string_view expected, std::string_view hint) {
  const JsonView schema = document.at("schema");
  const std::string found = schema.string();
  if (found == expected) return;
  const std::string_view family = expected.substr(0, expected.find('/') + 1);
  const auto number_of = [&](std::string_view name) {
    return name.starts_with(family) ? parse_version_number(name.substr(family.size())) : 0;
  };
  if (number_of(found) > number_of(expected)) {
    throw Error(ErrorCode::kUpgrade, schema.path() + ": found " + quote(found) +
                                         ", this kiln " KILN_VERSION " reads " +
                                         std::string(expected) + ". Upgrade kiln");
  }
  schema.fail("found " + quote(found) + ", expected " + std::string(expected) + std::string(hint));
}

Version parse_version_fact(const JsonView& view) {
  return parse_fact(view, parse_version, "a version of two numbers, \"12.9\"");
}

std::string parse_driver_fact(const JsonView& view) {
  return parse_word(view, is_driver_version,
                    "a driver's version, \"570.124.06\" or \"580.65\", not CUDA's");
}

CpuLevel parse_cpu_fact(const JsonView& view) {
  return parse_fact(view, parse_cpu_level, cpu_level_names());
}

std::string parse_word(const JsonView& view, bool (*fits)(std::string_view),
                       std::string_view expected) {
  std::string word = view.string();
  if (!fits(word)) view.fail("found " + quote(word) + ", expected " + std::string(expected));
  return word;
}

std::string parse_package_name(const JsonView& view) {
  return parse_word(view, is_package_name,
                    "words of a-z and 0-9 joined by '-', at most " +
                        std::to_string(kMaxPackageName) + " characters");
}

std::string parse_variant_id(const JsonView& view) {
  return parse_word(view, is_variant_id,
                    "letters, digits, '.', '_' and '-', at most " + std::to_string(kMaxVariantId) +
                        " characters");
}

bool is_text(std::string_view text) {
  return text.size() <= kMaxText && printable(text) == text;
}

std::string parse_text(const JsonView& view) {
  std::string text = view.string();
  if (!is_text(text)) {
    view.fail("found " + quote(text) + ", expected one line of text of at most " +
              std::to_string(kMaxText) + " bytes");
  }
  return text;
}

void add_device_code(const JsonView& view, std::string_view word, DeviceCode::Kind kind,
                     Needs& needs) {
  const std::optional<DeviceCode> code = parse_device_code(word);
  if (!code || code->kind != kind) {
    view.fail(
        "found " + quote(word) + ", expected " +
        (kind == DeviceCode::Kind::kSass ? "machine code, \"sm_90a\"" : "PTX, \"compute_80\""));
  }
  const auto& codes = needs.device_code;
  if (std::find(codes.begin(), codes.end(), *code) != codes.end()) {
    view.fail("names " + std::string(word) + " twice");
  }
  needs.device_code.push_back(*code);
}

void add_library(const JsonView& view, std::string_view word, Needs& needs) {
  if (!is_soname(word)) {
    view.fail("found " + quote(word) + ", expected a library's name, \"libcublasLt.so.12\"");
  }
  needs.libraries.emplace_back(word);
}

std::vector<std::string> code_words(const Needs& needs, DeviceCode::Kind kind) {
  std::vector<DeviceCode> codes = needs.device_code;
  std::sort(codes.begin(), codes.end());
  std::vector<std::string> words;
  for (const DeviceCode& code : codes) {
    if (code.kind == kind) words.push_back(to_string(code));
  }
  return words;
}

std::vector<std::string> library_words(const Needs& needs) {
  std::vector<std::string> words = needs.libraries;
  std::sort(words.begin(), words.end());
  return words;
}

void check_needs(const JsonView& view, const Needs& needs, Arch arch) {
  if (needs.cpu.arch != arch) {
    view.fail("states CPU level " + to_string(needs.cpu) + " for " + std::string(to_string(arch)));
  }
  if (needs.is_cpu()) {
    if (needs.min_driver || !needs.device_code.empty()) {
      view.fail("states a CUDA driver or device code, but no CUDA toolkit");
    }
    return;
  }
  if (!needs.min_driver) view.fail("states a CUDA toolkit, but no lowest driver");
  if (needs.device_code.empty()) view.fail("states a CUDA toolkit, but no device code");
}

}  // namespace kiln
