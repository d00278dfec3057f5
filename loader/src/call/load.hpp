// SPDX-License-Identifier: Apache-2.0
//
// Load: a library of the cache into this process. After unpack, the last stage before Kernel. The
// file is copied into a sealed memory file while it is hashed, and that memory file is what the
// dynamic linker gets: the bytes that were hashed are the bytes that run, whatever happens to the
// cache meanwhile. A library stays loaded until the process ends, and is loaded once however many
// kernels come from it. LoadMode::kPath gives the linker the file itself, for debuggers. Safe from
// several threads at once; a fork waits for a load under way.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/file_lock.hpp"
#include "base/posix.hpp"
#include "kiln/abi.h"
#include "kiln/device.hpp"
#include "kiln/request.hpp"

namespace kiln {

struct Config;     // documents/variant.hpp
struct Installed;  // install/install.hpp

/// What the request asks for, or $KILN_LOAD_MODE. Throws kUsage for a word that is neither.
LoadMode chosen_load_mode(LoadMode asked);

/// A copy of `file` in memory, called kiln:`name`, that nobody can change once `fill` has written
/// it. kLoad where the system gives none; `subject` names what is loaded.
FileDescriptor sealed_copy(const std::string& name, const std::filesystem::path& file,
                           std::string_view subject, const std::function<void(const Sink&)>& fill);

/// Throws kIntegrity if the file is not the one the config names, kLoad if it does not load, has no
/// entry point, or if its table is not the one that the config promises. `subject` names the
/// variant in errors. The lease is kept until the process ends: gc then keeps the variant.
const kiln_package& load_library(const std::filesystem::path& file, const Config& config,
                                 std::string_view subject, LoadMode mode = LoadMode::kMemory,
                                 FileLock lease = {});

/// Puts device code into the context now, so that the first call needs no driver work and can be
/// captured. Throws kDevice.
void prepare(const kiln_package& package, Device device, const std::string& subject);

/// For commands that call a package past get_kernel, as it is: what was installed, loaded and
/// prepared, with CUDA started where it is for a GPU. Throws what the two above throw.
const kiln_package& load_prepared(Installed& installed, LoadMode asked);

}  // namespace kiln
