// SPDX-License-Identifier: Apache-2.0
//
// BuildFiles: what the files of one variant are called in the folder that `kiln build` leaves. The
// loader and the registry read them.
#pragma once

namespace kiln::build_files {

inline constexpr const char* kDescriptor = "descriptor.json";
inline constexpr const char* kManifest = "manifest.json";
inline constexpr const char* kConfig = "config.json";
inline constexpr const char* kLayer = "layer.tar.zst";
inline constexpr const char* kDev = "dev.tar.zst";

}  // namespace kiln::build_files
