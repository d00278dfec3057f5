// SPDX-License-Identifier: Apache-2.0
//
// Certificates: where this machine keeps the authorities that it trusts, for a libcurl that does
// not know. A distribution's own libcurl does; the one inside a relocatable Kiln runs on any. Part
// of http.
#pragma once

#include <filesystem>
#include <string>

namespace kiln {

/// The first of the files that distributions keep them in, below `root`; empty if there is none.
std::string certificates_file(const std::filesystem::path& root = "/");

}  // namespace kiln
