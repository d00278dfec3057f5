// SPDX-License-Identifier: Apache-2.0
#include "kiln/kernel.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/signals.hpp"
#include "call/load.hpp"
#include "call/memo.hpp"
#include "call/table.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "install/in_observer.hpp"
#include "install/install.hpp"
#include "probe/driver.hpp"
#include "probe/probe.hpp"

namespace kiln {

namespace {

/// install(), and where a GPU was chosen, CUDA is started before anything is loaded: NVML may have
/// said that there is one where CUDA does not start. Then the request is answered once more without
/// a GPU: by its fallback, or by an error that says why.
Installed install_to_run(std::string_view name, const Request& request) {
  Installed installed = install(name, request);
  const Resolution& resolution = installed.choice.resolution;
  const std::vector<std::string>& overridden = resolution.host.overridden;
  const bool is_told = std::ranges::find(overridden, "KILN_OVERRIDE_SM") != overridden.end();
  if (resolution.device.kind != Device::Kind::kCuda || is_told) return installed;
  std::string problem = start_cuda();
  if (problem.empty()) return installed;
  return install(name, request, {.driver_problem = std::move(problem)});
}

/// Device code goes into the context now, so that the first call needs no driver work and can be
/// captured.
void prepare(const kiln_package& package, Device device, const std::string& subject) {
  kiln_error error{};
  const std::int32_t status = package.prepare(dl_device(device), &error);
  if (status == KILN_OK) return;
  failure_of(status, error);
  throw Error(ErrorCode::kDevice,
              "prepare " + subject + " on " + to_string(device) + ": " + error.text);
}

/// "x, gate_bias?, y; approximate": the tensors of an op, optional ones marked, and its attributes.
std::string signature_of(std::string_view schema) {
  const Json json = parse_json(schema, "the schema of an op");
  const JsonView op(json, "the schema of an op");
  std::string text;
  for (const JsonView& tensor : op.at("tensors").items()) {
    text += (text.empty() ? "" : ", ") + tensor.at("name").string();
    if (tensor.has("optional") && tensor.at("optional").boolean()) text += "?";
  }
  text += ";";
  if (!op.has("attributes")) return text;
  for (const JsonView& attribute : op.at("attributes").items()) {
    text += (text.back() == ';' ? " " : ", ") + attribute.at("name").string();
  }
  return text;
}

/// Whether an op takes what a layer gives it: the same tensors, and its attributes first.
bool takes(std::string_view op, std::string_view layer) {
  if (!op.starts_with(layer)) return false;
  const std::string_view more = op.substr(layer.size());
  return more.empty() || more.starts_with(",") || layer.ends_with(";");
}

}  // namespace

Kernel get_kernel(std::string_view name, const Request& request) {
  check_not_in_observer(name);
  const NoCancel whole;
  const auto load = [&] {
    const NoFileSizeSignal quiet;
    Installed installed = install_to_run(name, request);
    const Package& package = installed.package;
    check_runs_here(package.config.needs.cpu, package.subject);
    const kiln_package& table =
        load_library(package.library, package.config, package.subject,
                     chosen_load_mode(request.load_mode), std::move(installed.lease));
    const Resolution& resolution = installed.choice.resolution;
    const Device device = resolution.device;
    if (request.on_event && resolution.decisions.at(*resolution.chosen).jit) {
      marked_observer(request.on_event)(
          {Event::Stage::kCompile, package.subject, 0, 0,
           "the driver compiles PTX for " + to_string(device) +
               ", which takes seconds; it keeps the result for later runs"});
    }
    prepare(table, device, package.subject);
    return std::make_shared<const Kernel::Loaded>(Kernel::Loaded{
        package.config.name, package.variant.id, device, std::move(installed.choice.resolution),
        std::move(installed.choice.refused), package.library, &table});
  };
  // A refresh is asked for because the world may have changed: it is never answered from memory.
  if (request.refresh) return Kernel(load());
  return Kernel(memo<Kernel::Loaded>().get(memo_key(name, request), request.stop, load));
}

void Kernel::check_layer(std::string_view package, std::span<const LayerOp> ops) const {
  if (name() != package) {
    throw Error(ErrorCode::kUsage, "make a layer of " + label(loaded_->name, version()) +
                                       ": the layer is of package " + std::string(package) +
                                       ". Get that kernel, or use a layer of this package");
  }
  for (const LayerOp& each : ops) {
    const std::string found = signature_of(op(each.op).schema());
    if (takes(found, each.signature)) continue;
    throw Error(ErrorCode::kUsage,
                "make a layer of " + label(loaded_->name, version()) + ": op " +
                    std::string(each.op) + " takes (" + found + "), the layer was compiled for (" +
                    std::string(each.signature) +
                    "). Take the layer's header from this version of the package");
  }
}

Op Kernel::op(std::string_view name) const {
  std::string list;
  for (std::uint32_t i = 0; i < package().op_count; ++i) {
    const kiln_op& op = op_at(package(), i);
    if (op.name == name) return Op(&op);
    list += (list.empty() ? "" : ", ") + std::string(op.name);
  }
  throw Error(ErrorCode::kNotFound, "find op '" + std::string(name) + "' in " +
                                        label(loaded_->name, version()) +
                                        ": there is no such op; it has: " + list);
}

}  // namespace kiln
