// SPDX-License-Identifier: Apache-2.0
//
// Write: puts the pages of a registry into a folder, for any web server of static files. Above
// facts and pages. Not a part of the registry: clients believe signatures, never a page.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "registry/folder/submission.hpp"

namespace kiln::registry {

struct SiteRequest {
  std::filesystem::path registry;
  std::filesystem::path out;
  std::string title = "Kernels";
  std::string url;  ///< where users install from; empty: the pages do not say
};

struct SiteReport {
  std::size_t packages = 0;
  std::size_t versions = 0;
  std::size_t files = 0;              ///< of the site
  std::size_t written = 0;            ///< of these, those that had other bytes or were not there
  std::vector<std::string> problems;  ///< what could not be read, and is not on its page
};

/// Writes all that can be read, whatever else is damaged. Updates what is there; a file of the
/// folder that is not a page stays. Throws what gather_site does, kUsage for a folder that is a
/// registry, and for a title or URL that is not printable.
SiteReport write_site(const SiteRequest& request, const Progress& progress);

}  // namespace kiln::registry
