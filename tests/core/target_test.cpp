// SPDX-License-Identifier: Apache-2.0
#include "documents/target.hpp"

#include <string>
#include <utility>

#include "samples.hpp"

namespace kiln {

TEST_CASE("target: versions have two parts and one spelling") {
  const std::pair<std::string_view, Version> valid[] = {
      {"12.9", {12, 9}}, {"2.17", {2, 17}}, {"0.0", {0, 0}}, {"13.0", {13, 0}}, {"9.10", {9, 10}}};
  for (const auto& [text, version] : valid) {
    CHECK(parse_version(text) == version);
    CHECK(to_string(version) == text);
  }
  for (const std::string_view text :
       {"", "12", "12.", ".9", "12.9.1", "012.9", "12.09", "-1.0", "+1.0", "1.0 ", " 1.0", "1,0",
        "12.x", "99999.0", "1.99999", "1e1.0"}) {
    CHECK_MESSAGE(!parse_version(text), text);
  }
  CHECK(Version{2, 9} < Version{2, 17});
  CHECK(Version{12, 9} < Version{13, 0});
}

TEST_CASE("target: a driver's version is NVIDIA's, of two or three numbers") {
  for (const std::string_view text :
       {"570.124.06", "580.65", "580.65.06", "418.40.04", "100.0", "540.4.0"}) {
    CHECK_MESSAGE(is_driver_version(text), text);
  }
  for (const std::string_view text :
       {"", "570", "570.", ".124", "570.124.06.1", "570..06", "12.4", "99.1", "0570.124", "+570.1",
        "570.124 ", " 570.124", "570,124", "570.124-open", "570.x", "99999.1", "570.99999"}) {
    CHECK_MESSAGE(!is_driver_version(text), text);
  }
}

TEST_CASE("target: drivers are compared number by number, as far as both have numbers") {
  const struct {
    std::string_view left;
    std::string_view right;
    int expected;
  } rows[] = {
      {"570.124.06", "570.124.06", 0}, {"570.124.06", "570.124.6", 0},
      {"570.124.06", "570.124", 0},    {"570.124", "570.124.99", 0},
      {"570.86.15", "570.124.06", -1}, {"570.124.06", "580.65.06", -1},
      {"570.124.6", "570.124.10", -1}, {"570.86", "570.124.06", -1},
      {"1000.1", "580.65", 1},
  };
  for (const auto& row : rows) {
    CAPTURE(row.left);
    CAPTURE(row.right);
    CHECK(compare_drivers(row.left, row.right) == row.expected);
    CHECK(compare_drivers(row.right, row.left) == -row.expected);
  }
}

TEST_CASE("target: architectures and CPU levels are words of their own") {
  CHECK(parse_arch("x86_64") == Arch::kX86_64);
  CHECK(parse_arch("aarch64") == Arch::kAarch64);
  for (const std::string_view text : {"", "amd64", "arm64", "x86-64", "X86_64", "aarch64 "}) {
    CHECK_MESSAGE(!parse_arch(text), text);
  }
  const std::pair<std::string_view, CpuLevel> levels[] = {
      {"x86-64", {Arch::kX86_64, 1}},         {"x86-64-v2", {Arch::kX86_64, 2}},
      {"x86-64-v3", {Arch::kX86_64, 3}},      {"x86-64-v4", {Arch::kX86_64, 4}},
      {"x86-64-v4-bf16", {Arch::kX86_64, 5}}, {"x86-64-v4-amx", {Arch::kX86_64, 6}},
      {"armv8-a", {Arch::kAarch64, 1}}};
  for (const auto& [text, level] : levels) {
    CHECK(parse_cpu_level(text) == level);
    CHECK(to_string(level) == text);
  }
  for (const std::string_view text : {"", "x86-64-v1", "x86-64-v5", "x86_64", "armv9-a", "x86-64-v",
                                      "x86-64-v3-bf16", "unknown"}) {
    CHECK_MESSAGE(!parse_cpu_level(text), text);
  }
}

TEST_CASE("target: device code is spelled as the toolkit spells it") {
  const struct {
    std::string_view text;
    DeviceCode::Kind kind;
    Version capability;
    char suffix;
  } valid[] = {
      {"sm_75", DeviceCode::Kind::kSass, {7, 5}, 0},
      {"sm_90", DeviceCode::Kind::kSass, {9, 0}, 0},
      {"sm_90a", DeviceCode::Kind::kSass, {9, 0}, 'a'},
      {"sm_100f", DeviceCode::Kind::kSass, {10, 0}, 'f'},
      {"sm_121a", DeviceCode::Kind::kSass, {12, 1}, 'a'},
      {"compute_80", DeviceCode::Kind::kPtx, {8, 0}, 0},
      {"compute_90a", DeviceCode::Kind::kPtx, {9, 0}, 'a'},
      {"compute_120f", DeviceCode::Kind::kPtx, {12, 0}, 'f'},
  };
  for (const auto& row : valid) {
    const DeviceCode code{row.kind, row.capability, row.suffix};
    CHECK(parse_device_code(row.text) == code);
    CHECK(to_string(code) == row.text);
  }
  for (const std::string_view text :
       {"", "sm_", "sm_9", "sm_a", "sm_90b", "sm_90A", "sm_90af", "sm_090", "sm_1000", "sm_9.0",
        "SM_90", "90", "compute90", "compute_", "sm90", " sm_90", "sm_90 ", "sm_-9", "lto_90"}) {
    CHECK_MESSAGE(!parse_device_code(text), text);
  }
}

TEST_CASE("target: which GPUs a piece of code is for") {
  const struct {
    std::string_view code;
    std::string_view runs_on;  // capabilities, space-separated
    std::string_view not_on;
  } rows[] = {
      {"sm_75", "7.5", "7.0 7.2 8.0 9.0"},
      {"sm_70", "7.0 7.5", "7.2 6.0 8.0"},
      {"sm_80", "8.0 8.6 8.9", "7.5 8.7 9.0 10.0 12.0"},
      {"sm_86", "8.6 8.9", "8.0 8.7 9.0"},
      {"sm_89", "8.9", "8.0 8.6 9.0"},
      {"sm_90", "9.0", "8.9 10.0"},
      {"sm_90a", "9.0", "8.9 10.0 12.0"},
      {"sm_100", "10.0 10.3", "9.0 10.1 11.0 12.0"},
      {"sm_100a", "10.0", "10.3 12.0"},
      {"sm_100f", "10.0 10.3", "10.1 11.0 12.0"},
      {"sm_103", "10.3", "10.0"},
      {"sm_103a", "10.3", "10.0 12.0"},
      {"sm_103f", "10.3", "10.0 11.0"},
      {"sm_110f", "11.0", "10.0 10.3 12.0"},
      {"sm_120", "12.0 12.1", "10.0 11.0"},
      {"sm_120a", "12.0", "12.1"},
      {"sm_120f", "12.0 12.1", "10.0 11.0"},
      {"sm_121", "12.1", "12.0"},
      {"sm_121f", "12.1", "12.0"},
      // The GPUs of SoCs: exact, in both directions.
      {"sm_72", "7.2", "7.0 7.5"},
      {"sm_87", "8.7", "8.0 8.6 8.9"},
      {"sm_101", "10.1", "10.0 10.3"},
      {"sm_110", "11.0", "10.0 12.0"},
      {"compute_80", "8.0 8.6 8.7 8.9 9.0 10.0 10.3 11.0 12.0 12.1", "7.5 7.2"},
      {"compute_90", "9.0 10.0 12.1", "8.9"},
      {"compute_90a", "9.0", "8.9 10.0 12.0"},
      {"compute_100f", "10.0 10.3", "9.0 12.0"},
  };
  const auto each = [](std::string_view words, auto call) {
    while (!words.empty()) {
      const std::size_t space = words.find(' ');
      call(parse_version(words.substr(0, space)).value());
      words.remove_prefix(space == std::string_view::npos ? words.size() : space + 1);
    }
  };
  for (const auto& row : rows) {
    const DeviceCode code = parse_device_code(row.code).value();
    each(row.runs_on,
         [&](Version gpu) { CHECK_MESSAGE(covers(code, gpu), row.code, " on ", to_string(gpu)); });
    each(row.not_on,
         [&](Version gpu) { CHECK_MESSAGE(!covers(code, gpu), row.code, " on ", to_string(gpu)); });
  }
}

}  // namespace kiln
