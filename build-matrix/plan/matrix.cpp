// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/plan/matrix.hpp"

#include <algorithm>

#include "build-matrix/schema/fields.hpp"
#include "documents/facts.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

// An exclusion that names what no axis has would silently exclude nothing.
template <class Value>
void must_be_on_axis(const std::vector<Value>& named, const std::vector<Value>& axis,
                     const JsonView& exclusion, std::string_view key) {
  for (const Value& value : named) {
    if (std::ranges::find(axis, value) == axis.end()) {
      exclusion.fail(std::string(key) + " names \"" + std::string(to_string(value)) +
                     "\", which is not on that axis");
    }
  }
}

Arch read_arch(const JsonView& value) {
  return parse_fact(value, parse_arch, "a CPU architecture");
}

Toolkit read_toolkit(const JsonView& value) {
  check_keys(value, {"version", "min_driver"}, {"risk"});
  return {.version = parse_version_fact(value.at("version")),
          .min_driver = parse_version_fact(value.at("min_driver")),
          .risk = value.has("risk") ? value.at("risk").string() : ""};
}

Exclusion parse_exclusion(const JsonView& json, const Matrix& matrix) {
  check_keys(json, {"reason"}, {"toolkits", "targets", "hosts", "compiler", "headers"});
  Exclusion exclusion;
  exclusion.reason = json.at("reason").string();
  if (exclusion.reason.empty()) json.at("reason").fail("an exclusion needs a reason");
  if (json.has("compiler")) {
    const auto is_compiler = [](const std::string& word) {
      return word == "nvrtc" || word == "triton";
    };
    exclusion.compiler =
        read_word(json.at("compiler"), is_compiler, "is not a compiler; expected nvrtc or triton");
  }
  const auto read = [&](std::string_view key, auto read_one, auto& named, const auto& axis) {
    if (!json.has(key)) return;
    named = read_list(json.at(key), read_one);
    must_be_on_axis(named, axis, json, key);
  };
  std::vector<Version> versions;
  for (const Toolkit& toolkit : matrix.toolkits) versions.push_back(toolkit.version);
  read("toolkits", parse_version_fact, exclusion.toolkits, versions);
  read("targets", read_target, exclusion.targets, matrix.targets);
  read("hosts", read_arch, exclusion.hosts, matrix.hosts);
  if (json.has("headers")) exclusion.headers = json.at("headers").boolean();
  return exclusion;
}

Matrix parse(std::string_view text, std::string_view subject) {
  const Json document = parse_json(text, subject);
  const JsonView root(document, std::string(subject));
  check_keys(root, {"schema", "glibc", "cuda", "cpu", "exclude"});
  if (root.at("schema").string() != "kiln.matrix/1") {
    root.at("schema").fail("expected \"kiln.matrix/1\", found \"" + root.at("schema").string() +
                           "\"");
  }
  Matrix matrix;
  matrix.glibc = parse_version_fact(root.at("glibc"));
  const JsonView cuda = root.at("cuda");
  check_keys(cuda, {"toolkits", "targets", "hosts"}, {"headers"});
  for (const JsonView& item : cuda.at("toolkits").items()) {
    matrix.toolkits.push_back(read_toolkit(item));
  }
  matrix.targets = read_list(cuda.at("targets"), read_target);
  matrix.hosts = read_list(cuda.at("hosts"), read_arch);
  if (cuda.has("headers")) matrix.headers = read_list(cuda.at("headers"), read_line);
  const JsonView cpu = root.at("cpu");
  check_keys(cpu, {"levels"});
  matrix.cpu_levels = read_list(cpu.at("levels"), read_cpu_level);
  for (const JsonView& item : root.at("exclude").items()) {
    matrix.exclusions.push_back(parse_exclusion(item, matrix));
  }
  return matrix;
}

}  // namespace

Matrix parse_matrix(std::string_view text, std::string_view subject) {
  try {
    return parse(text, subject);
  } catch (const Error& error) {
    throw Error(ErrorCode::kBuild, error.what());
  }
}

}  // namespace kiln::build
