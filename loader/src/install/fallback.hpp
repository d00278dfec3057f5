// SPDX-License-Identifier: Apache-2.0
//
// Fallback: what is tried where no variant fits, as the request says and in no other case. Around
// select; what select(), install and has_kernel begin with. A Selecting is used by one thread at a
// time.
#pragma once

#include <string_view>

#include "install/select.hpp"

namespace kiln {

/// "cpu" or "version:2". Throws kUsage.
Fallback parse_fallback(std::string_view text);

/// start_selecting, and where nothing fits again for each of the request's fallbacks, until
/// something does. What was refused is in selected.refused, and told to on_event. If nothing fits
/// at all, selected.no_variant has every table. Throws what start_selecting throws.
Selecting select_or_fall_back(std::string_view name, const Request& request);

}  // namespace kiln
