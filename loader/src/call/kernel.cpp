// SPDX-License-Identifier: Apache-2.0
#include "kiln/kernel.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/quote.hpp"
#include "base/signals.hpp"
#include "call/load.hpp"
#include "call/memo.hpp"
#include "call/table.hpp"
#include "call/tuned_ops.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "documents/ops.hpp"
#include "install/in_observer.hpp"
#include "install/install.hpp"
#include "install/tuned.hpp"
#include "probe/driver.hpp"

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

/// "geglu-mlp.forward(x: …, y!: …; limit: float = 7.0)" without what stands around the arguments.
std::string_view arguments_in(std::string_view signature) {
  signature.remove_prefix(std::min(signature.find('(') + 1, signature.size()));
  if (!signature.empty()) signature.remove_suffix(1);
  return signature;
}

/// Whether an op takes what a caller of `wanted` gives it: the same tensors, and its attributes
/// first.
bool takes(std::string_view found, std::string_view wanted) {
  found = arguments_in(found);
  wanted = arguments_in(wanted);
  if (!found.starts_with(wanted)) return false;
  const std::string_view more = found.substr(wanted.size());
  const bool has_attributes = wanted.find("; ") != std::string_view::npos;
  return more.empty() || more.starts_with(has_attributes ? ", " : "; ");
}

/// The first argument in which two signatures differ, of each: "nothing" where one has ended.
std::pair<std::string, std::string> first_difference(std::string_view found,
                                                     std::string_view wanted) {
  const auto next = [](std::string_view& rest) {
    const std::size_t end = std::min(rest.find(", "), rest.find("; "));
    const std::string_view argument = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 2);
    return argument.empty() ? std::string("nothing") : quote(argument);
  };
  found = arguments_in(found);
  wanted = arguments_in(wanted);
  while (true) {
    std::pair<std::string, std::string> both = {next(found), next(wanted)};
    if (both.first != both.second || (found.empty() && wanted.empty())) return both;
  }
}

}  // namespace

Kernel get_kernel(std::string_view name, const Request& request) {
  check_not_in_observer(name);
  if (request.threads < 0) {
    throw Error(ErrorCode::kUsage, "get " + std::string(name) + ": threads is " +
                                       std::to_string(request.threads) +
                                       ", expected 1 or more, or 0 for no bound");
  }
  const NoCancel whole;
  const auto load = [&] {
    const NoFileSizeSignal quiet;
    Installed installed = install_to_run(name, request);
    const Package& package = installed.package;
    const kiln_package& table =
        load_library(package.library, package.config, package.subject,
                     chosen_load_mode(request.load_mode), std::move(installed.lease));
    Resolution& resolution = installed.choice.resolution;
    const Device device = resolution.device;
    const Tuned tuned = read_tuned(resolution, package.variant);
    resolution.tuned = tuned.text;
    if (request.on_event && resolution.decisions.at(*resolution.chosen).jit) {
      marked_observer(request.on_event)(
          {Event::Stage::kCompile, package.subject, 0, 0,
           "the driver compiles PTX for " + to_string(device) +
               ", which takes seconds; it keeps the result for later runs"});
    }
    prepare(table, device, package.subject);
    const kiln_package* const called =
        tuned.table ? tuned_package(table, *tuned.table, tuned.file.string()) : &table;
    return std::make_shared<const Kernel::Loaded>(Kernel::Loaded{
        package.config.name, package.variant.id, device, std::move(installed.choice.resolution),
        std::move(installed.choice.refused), package.library, called});
  };
  // A refresh is asked for because the world may have changed: it is never answered from memory.
  if (request.refresh) return {load(), request.threads};
  return {memo<Kernel::Loaded>().get(memo_key(name, request), request.stop, load), request.threads};
}

Availability prefetch(std::string_view name, const Request& request) {
  check_not_in_observer(name);
  const NoCancel whole;
  const NoFileSizeSignal quiet;
  const Installed installed = install(name, request);
  const Package& package = installed.package;
  return {.available = true,
          .code = ErrorCode::kInternal,
          .reason = "",
          .variant = package.variant.id,
          .version = package.config.version,
          .device = installed.choice.resolution.device};
}

Op Kernel::checked_op(const OpSignature& wanted) const {
  for (std::uint32_t i = 0; i < package().op_count; ++i) {
    const kiln_op& op = op_at(package(), i);
    if (stated_signature(op) == wanted.hash) return {&op, threads_};
  }
  return differing_op(wanted);
}

/// Of a package of ABI minor 0, of one with more attributes, or none.
Op Kernel::differing_op(const OpSignature& wanted) const {
  const std::string subject =
      "take op " + std::string(wanted.op) + " of " + label(loaded_->name, version()) + ": ";
  if (name() != wanted.package) {
    throw Error(ErrorCode::kUsage, subject + "the program's header is of package " +
                                       std::string(wanted.package) +
                                       ". Get that kernel, or use a header of this package");
  }
  const Op found = op(wanted.op);
  constexpr const char* kSchema = "the schema of an op";
  const Json json = parse_json(found.schema(), kSchema);
  const std::string has = signature_text(name(), JsonView(json, kSchema));
  if (takes(has, wanted.text)) return found;
  const auto [its, ours] = first_difference(has, wanted.text);
  throw Error(ErrorCode::kUsage,
              subject + "it takes " + its + " where the program was compiled for " + ours +
                  ". Take the header of this version of the package. The op is " + has +
                  ", the header's " + std::string(wanted.text));
}

Op Kernel::op(std::string_view name) const {
  std::string list;
  for (std::uint32_t i = 0; i < package().op_count; ++i) {
    const kiln_op& op = op_at(package(), i);
    if (op.name == name) return {&op, threads_};
    list += (list.empty() ? "" : ", ") + std::string(op.name);
  }
  throw Error(ErrorCode::kNotFound, "find op '" + std::string(name) + "' in " +
                                        label(loaded_->name, version()) +
                                        ": there is no such op; it has: " + list);
}

}  // namespace kiln
