// SPDX-License-Identifier: Apache-2.0
//
// Layer: does this archive unpack to exactly what its config lists? Before publish, and in check.
// Reads the layer, writes nothing. What the loader would refuse on a user's machine is refused
// here: anything but one zstd frame chain around one tar of regular files, each listed, each once,
// with the listed size and digest, and nothing but padding after the archive's end.
#pragma once

#include <filesystem>
#include <string_view>

#include "documents/manifest.hpp"

namespace kiln::registry {

/// Throws kIntegrity naming the layer and what is wrong in it.
void check_layer(const std::filesystem::path& layer, const Config& config,
                 std::string_view subject);

}  // namespace kiln::registry
