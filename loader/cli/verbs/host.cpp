// SPDX-License-Identifier: Apache-2.0
//
// kiln host: what resolve knows of this machine. As JSON it is the facts file that --host takes on
// another machine; packages that are named have their libraries looked up too.
#include <string>
#include <vector>

#include "documents/host.hpp"
#include "documents/json.hpp"
#include "install/install.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "probe/probe.hpp"

namespace kiln::cli {
namespace {

std::string describe_driver(const Host& host) {
  const std::string cuda = "CUDA " + to_string(*host.driver);
  return host.driver_version.empty() ? cuda + "; its own version cannot be told"
                                     : host.driver_version + " with " + cuda;
}

void print_line(const char* name, const std::string& text) {
  print("%-10s%s\n", name, text.c_str());
}

int run_host(const Options& options) {
  std::vector<std::string> sonames = usual_libraries();
  for (const Spec& spec : options.specs) {
    const Choice choice = Install(spec.name, options.request_for(spec)).choose();
    for (const Variant& variant : choice.version.index.variants) {
      const std::vector<std::string>& needed = variant.needs.libraries;
      sonames.insert(sonames.end(), needed.begin(), needed.end());
    }
  }
  Host host = probe_host();
  probe_libraries(host, std::move(sonames));
  print_json("host", to_json(host));
  print_host(host);
  return 0;
}

}  // namespace

void print_host(const Host& host) {
  print_line("arch", std::string(to_string(host.arch)));
  print_line("cpu", to_string(host.cpu));
  print_line("glibc", host.glibc ? to_string(*host.glibc) : "none");
  print_line("driver", host.driver                   ? describe_driver(host)
                       : host.driver_problem.empty() ? "none"
                                                     : "not known");
  for (const Gpu& gpu : host.gpus) {
    print_line(to_string(Device::cuda(gpu.ordinal)).c_str(),
               (gpu.name.empty() ? "" : gpu.name + ", ") + "compute capability " +
                   to_string(gpu.capability));
  }
  const bool told = host.driver_problem.empty();
  if (host.gpus.empty()) print_line("gpu", told ? "none" : "not known: " + host.driver_problem);
  for (const std::string& soname : host.libraries) print_line("library", soname);
  if (!host.absent.empty()) {
    print_line("library", "and " + std::to_string(host.absent.size()) + " that are not here");
  }
  for (const std::string& fact : host.overridden) print_line("overridden", " " + fact);
}

void host(KernelCommand& command) {
  command.takes_packages();
  command.takes_registry();
  command.takes_cache();
  command.example("", "what this machine is");
  command.example("--json > cluster.json", "for 'kiln resolve --host cluster.json' elsewhere");
  command.example("geglu-mlp@1 --json", "with the libraries that its variants look up");
  command.runs(run_host);
}

}  // namespace kiln::cli
