// SPDX-License-Identifier: Apache-2.0
//
// InObserver: whether this thread is inside an observer. An install that begins there would wait
// for locks that the install around it holds: it is refused. Part of install and of get_kernel.
#pragma once

#include <string_view>

#include "kiln/event.hpp"

namespace kiln {

/// The same observer; while it runs, its thread may not begin an install.
Observer marked_observer(Observer observer);

/// Throws kUsage inside an observer.
void check_not_in_observer(std::string_view name);

}  // namespace kiln
