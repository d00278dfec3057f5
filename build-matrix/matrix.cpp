// SPDX-License-Identifier: Apache-2.0
#include "matrix.hpp"

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "documents/json.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

void only_keys(const JsonView& object, std::initializer_list<std::string_view> allowed) {
  if (!object.json().is_object()) object.fail("expected an object");
  for (const auto& [key, value] : object.json().items()) {
    if (std::find(allowed.begin(), allowed.end(), key) == allowed.end()) {
      object.fail("unknown key \"" + key + "\"");
    }
  }
}

template <class Value>
Value parse_as(const JsonView& json, std::optional<Value> (*parse)(std::string_view),
               std::string_view what) {
  const std::string text = json.string();
  const std::optional<Value> value = parse(text);
  if (!value) json.fail("\"" + text + "\" is not " + std::string(what));
  return *value;
}

template <class Value>
std::vector<Value> parse_list(const JsonView& list, std::optional<Value> (*parse)(std::string_view),
                              std::string_view what) {
  std::vector<Value> values;
  for (const JsonView& item : list.items()) {
    const Value value = parse_as(item, parse, what);
    if (std::find(values.begin(), values.end(), value) != values.end()) {
      item.fail("\"" + item.string() + "\" stands in the list twice");
    }
    values.push_back(value);
  }
  if (values.empty()) list.fail("expected at least one entry");
  return values;
}

// An exclusion that names what no axis has would silently exclude nothing.
template <class Value>
void must_be_on_axis(const std::vector<Value>& named, const std::vector<Value>& axis,
                     const JsonView& exclusion, std::string_view key) {
  for (const Value& value : named) {
    if (std::find(axis.begin(), axis.end(), value) == axis.end()) {
      exclusion.fail(std::string(key) + " names \"" + std::string(to_string(value)) +
                     "\", which is not on that axis");
    }
  }
}

Exclusion parse_exclusion(const JsonView& json, const Matrix& matrix) {
  only_keys(json, {"toolkits", "targets", "hosts", "reason"});
  Exclusion exclusion;
  exclusion.reason = json.at("reason").string();
  if (exclusion.reason.empty()) json.at("reason").fail("an exclusion needs a reason");
  std::vector<Version> versions;
  for (const Toolkit& toolkit : matrix.toolkits) versions.push_back(toolkit.version);
  if (json.has("toolkits")) {
    exclusion.toolkits = parse_list(json.at("toolkits"), parse_version, "a CUDA version");
  }
  if (json.has("targets")) {
    exclusion.targets = parse_list(json.at("targets"), parse_device_code, "a GPU target");
  }
  if (json.has("hosts")) {
    exclusion.hosts = parse_list(json.at("hosts"), parse_arch, "a CPU architecture");
  }
  must_be_on_axis(exclusion.toolkits, versions, json, "toolkits");
  must_be_on_axis(exclusion.targets, matrix.targets, json, "targets");
  must_be_on_axis(exclusion.hosts, matrix.hosts, json, "hosts");
  return exclusion;
}

Matrix parse(std::string_view text, std::string_view subject) {
  const Json document = parse_json(text, subject);
  const JsonView root(document, std::string(subject));
  only_keys(root, {"schema", "glibc", "cuda", "cpu", "exclude"});
  if (root.at("schema").string() != "kiln.matrix/1") {
    root.at("schema").fail("expected \"kiln.matrix/1\", found \"" + root.at("schema").string() +
                           "\"");
  }
  Matrix matrix;
  matrix.glibc = parse_as(root.at("glibc"), parse_version, "a glibc version");
  const JsonView cuda = root.at("cuda");
  only_keys(cuda, {"toolkits", "targets", "hosts"});
  for (const JsonView& item : cuda.at("toolkits").items()) {
    only_keys(item, {"version", "min_driver"});
    matrix.toolkits.push_back(
        {.version = parse_as(item.at("version"), parse_version, "a CUDA version"),
         .min_driver = parse_as(item.at("min_driver"), parse_version, "a CUDA version")});
  }
  matrix.targets = parse_list(cuda.at("targets"), parse_device_code, "a GPU target");
  matrix.hosts = parse_list(cuda.at("hosts"), parse_arch, "a CPU architecture");
  const JsonView cpu = root.at("cpu");
  only_keys(cpu, {"levels"});
  matrix.cpu_levels = parse_list(cpu.at("levels"), parse_cpu_level, "a CPU level");
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
