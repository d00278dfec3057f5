// SPDX-License-Identifier: Apache-2.0
//
// Sink: bytes on their way, from whoever reads them to whoever takes them.
#pragma once

#include <functional>
#include <string_view>

namespace kiln {

/// Takes bytes piece by piece; throws to stop the transfer.
using Sink = std::function<void(std::string_view)>;

}  // namespace kiln
