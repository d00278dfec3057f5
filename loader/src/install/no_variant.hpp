// SPDX-License-Identifier: Apache-2.0
//
// No_variant: what a user reads where no variant fits: every variant and its reason, the nearest
// one and what would make it fit, another version that would do. After resolve. A Selecting is used
// by one thread at a time.
#pragma once

#include <string>

#include "install/select.hpp"

namespace kiln {

/// `not_asked`: why the registry was not asked for newer builds; empty if it was, and then it is
/// asked for other versions too.
std::string no_variant_text(Selecting& self, Host& host, const std::string& not_asked);

}  // namespace kiln
