// SPDX-License-Identifier: Apache-2.0
//
// Pages: the facts of a registry as the files of a static site. After facts; under write,
// which writes them, and serve, which hands them out. The pages link to one another relatively, so
// they work below any URL and from a folder. Pure: the same facts give the same bytes.
//
//   index.html                     every package, and the search
//   packages/<name>/index.html     its current version
//   packages/<name>/<N>.html       each version
//   style.css, search.js, icon.svg
#pragma once

#include <map>
#include <string>

#include "registry/site/facts.hpp"

namespace kiln::registry {

/// Bytes by path.
using Pages = std::map<std::string, std::string>;

Pages make_pages(const SiteFacts& site);

}  // namespace kiln::registry
