// SPDX-License-Identifier: Apache-2.0
//
// Event: what an install is doing, for a progress bar and a log. The only way in which the library
// speaks before it returns: it prints nothing itself.
#pragma once

#include "kiln/compiler.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace kiln {

struct Event {
  enum class Stage {
    kIndex,
    kManifest,
    kConfig,
    kLayer,
    kUnpack,
    kRetry,     ///< a request is made again, or to another mirror; `note` says why and when
    kWait,      ///< another process holds a lock of the cache; `note` says which one does
    kFallback,  ///< Request::fallback took effect; `note` says what was refused and what is tried
    kCompile,   ///< the driver compiles PTX for this GPU, which takes seconds; `note` says so
    kWarning,   ///< `note` is what a registry tells its users, or that `deny` names nothing known
  };
  Stage stage = Stage::kIndex;
  std::string subject;      ///< "geglu-mlp@1", "geglu-mlp@1 cu12.9-sm_90a-x86_64"
  std::uint64_t done = 0;   ///< bytes
  std::uint64_t total = 0;  ///< bytes; 0 if not known
  std::string note = {};    ///< one line for people; empty while bytes arrive
};
std::string_view to_string(Event::Stage stage);  ///< "index", "manifest", …

/// Called on a thread of the install, one call at a time. Whatever it throws stops the install,
/// passes through and harms no other caller. It must not call get_kernel (kUsage), nor wait for a
/// thread that does, nor end its thread: it is called inside of libraries that no pthread_exit()
/// may unwind through, and the process could end by SIGABRT.
using Observer = std::function<void(const Event&)>;

}  // namespace kiln
