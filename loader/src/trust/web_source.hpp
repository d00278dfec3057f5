// SPDX-License-Identifier: Apache-2.0
//
// WebSource: metadata as static files of a web server, of any that speaks http or https: nothing of
// it is trusted. Beside repository_source.hpp, under updater. For one thread.
#pragma once

#include <string>

#include "http/retry.hpp"
#include "http/transfer.hpp"
#include "trust/updater.hpp"

namespace kiln::trust {

class WebSource final : public MetadataSource {
 public:
  WebSource(std::string url, const Patience& patience);

  /// Statuses 403 and 404 mean that there is no such file.
  std::optional<std::string> fetch(const std::string& file, std::size_t most) const override;

 private:
  std::string url_;  ///< with a slash at its end
  Patience patience_;
  mutable Transfer transfer_;
};

}  // namespace kiln::trust
