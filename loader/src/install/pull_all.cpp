// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include "install/install.hpp"
#include "install/parallel.hpp"

namespace kiln {

std::vector<Package> pull_all(std::string_view name, const Request& request,
                              const InstallOptions& options, const VersionIndex& version,
                              const std::vector<const Variant*>& variants, Layers layers) {
  std::vector<Package> packages(variants.size());
  std::atomic<std::size_t> next = 0;
  const std::size_t workers = std::min(variants.size(), kDownloadsAtOnce);
  const Observer on_event = one_at_a_time(request.on_event);
  in_parallel(workers, workers, request.stop, [&](std::size_t, const std::stop_token& stop) {
    Request own = request;  // each worker keeps a connection of its own
    own.on_event = on_event;
    own.stop = stop;
    Install install(name, own, options);
    for (std::size_t i = next++; i < variants.size(); i = next++) {
      packages[i] = install.pull(version, *variants[i]);
      if (layers == Layers::kPulled) install.pull_layers(packages[i]);
    }
  });
  return packages;
}

}  // namespace kiln
